"""Parameters and buffers of unusual shape, size, stride and dtype."""

import torch
from support.zoo.entry import WIDTH, Entry, Unit, ZooModel, rows, source, squares
from torch import Tensor, nn
from torch.nn import functional as F


class Shapes(Unit):
    """0-dim, fewer elements than ranks, 5 rows over 4 ranks, a transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(0.7))
        self.one = nn.Parameter(torch.randn(1))
        self.three = nn.Parameter(torch.randn(3, 1))
        self.five = nn.Parameter(torch.randn(5, WIDTH) * 0.3)
        self.transposed = nn.Parameter((torch.randn(WIDTH, WIDTH + 2) * 0.2).t())
        self.wide = nn.Parameter(torch.randn(1, 5 * WIDTH) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(x @ self.five.t())
        x = x + self.gate * (inner * self.three.mean() + self.one) @ self.five
        x = F.linear(x, self.transposed)
        return torch.tanh(x[:, :WIDTH] + x[:, WIDTH:].sum(1, keepdim=True)) * self.wide.view(5, WIDTH).mean(0)


class OddShapes(ZooModel):
    """Two such units and a plain head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Shapes(), Shapes()])
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)


def _rows_loss(model: nn.Module, rank: int, index: int) -> Tensor:
    return squares(model(rows(rank, index)))


class Empties(Unit):
    """Parameters of no elements before, between and behind others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(0))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.2)
        self.middle = nn.Parameter(torch.empty(0, WIDTH))
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.last = nn.Parameter(torch.empty(WIDTH, 0))

    def forward(self, x: Tensor) -> Tensor:
        nothing = self.first.sum() + (x @ self.middle.t()).sum() + self.last.sum()
        return x + torch.tanh(F.linear(x, self.weight, self.bias)) + nothing


class Empty(ZooModel):
    """Two such units; the root has nothing but an empty parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Empties(), Empties()])
        self.nothing = nn.Parameter(torch.empty(3, 0))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.run(block, x)
        return x + self.nothing.sum()


class TwoDtypes(Unit):
    """bf16 and fp32 parameters, trainable and frozen, in one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.short = nn.Linear(WIDTH, WIDTH).bfloat16()
        self.frozen = nn.Linear(WIDTH, WIDTH).bfloat16().requires_grad_(False)
        self.long = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(x).to(self.short.weight.dtype)
        return x + self.long(torch.tanh(self.frozen(self.short(inner))).to(self.long.weight.dtype))


class MixedDtypes(ZooModel):
    """Two such units; the root's bias is bf16, its head fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([TwoDtypes(), TwoDtypes()])
        self.bias = nn.Parameter(torch.randn(WIDTH).bfloat16())
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.bias.to(x.dtype)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)


class Lookup(Unit):
    """Integer, bool and fp32 buffers, an integer parameter, and rotary angles that bf16 would ruin."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randint(256, (WIDTH, WIDTH), dtype=torch.uint8), requires_grad=False)
        self.scale = nn.Parameter(torch.randn(WIDTH, 1) * 0.002)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("order", torch.randperm(WIDTH))
        self.register_buffer("mask", torch.arange(WIDTH) % 3 > 0)
        self.register_buffer("angles", torch.arange(1000.0, 1000.0 + WIDTH) * 1.001, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        assert self.angles.dtype is torch.float32
        turned = (x.float() * self.angles.cos()).to(self.linear.weight.dtype)
        weight = (self.codes.to(self.scale.dtype) - 128) * self.scale
        kept = torch.where(self.mask, F.linear(turned, weight), turned[:, self.order])
        return x + torch.tanh(self.linear(kept))


class Buffers(ZooModel):
    """Two such units; the root looks up rows by an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Lookup(), Lookup()])
        self.head = nn.Linear(WIDTH, 5)
        self.register_buffer("picks", torch.tensor([4, 0, 2]))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)[:, self.picks]


class ConvBlock(Unit):
    """A convolution with a channels-last weight, batch and group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
        self.batch, self.group = nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
        self.point = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.point(torch.relu(self.group(self.batch(self.conv(x)))))


class Convolutions(ZooModel):
    """Images, statistics of the batch, and a pooled head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([ConvBlock(), ConvBlock()])
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x.mean((2, 3)))


def _images_loss(model: nn.Module, rank: int, index: int) -> Tensor:
    return squares(model(torch.randn(4, 3, 5, 5, generator=source(rank, index))))


ENTRIES = (
    Entry("odd_shapes", OddShapes, _rows_loss, options={"replicate_max_numel": 0}),
    Entry("empty", Empty, _rows_loss, options={"replicate_max_numel": 0}),
    Entry("mixed_dtypes", MixedDtypes, _rows_loss),
    Entry("buffers", Buffers, _rows_loss),
    Entry("convolutions", Convolutions, _images_loss, dtypes=("fp32",)),  # batch norm takes no bf16 weights on CPU
)
