"""Unusual orders of units: repeated, skipped, nested, partly differentiated, different on each rank."""

import torch
from support.zoo.entry import WIDTH, Entry, Unit, ZooModel, rows, squares
from torch import Tensor, nn


class Cell(Unit):
    """A residual map whose backward needs its input and its output."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


class Reused(ZooModel):
    """One cell runs three times, another only when it is not skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.often, self.sometimes, self.last = Cell(), Cell(), Cell(), Cell()
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, skip: bool) -> Tensor:
        cells = [self.first, self.often, self.sometimes, self.often, self.last, self.often]
        for cell in cells:
            if not (skip and cell is self.sometimes):
                x = self.run(cell, x)
        return self.head(x)


def _skips_on_odd(model: nn.Module, rank: int, index: int) -> Tensor:
    return squares(model(rows(rank, index), skip=index % 2 == 1))


class Outer(Unit):
    """A unit with parameters of its own, before, between and behind the units inside it."""

    def __init__(self, inner: type[nn.Module]) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.2)
        self.one, self.two = inner(), inner()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x @ self.gain)
        x = self.two(torch.tanh(self.linear(x)))
        return torch.sin(x @ self.gain)


class Middle(Outer):
    """The second of three levels."""

    def __init__(self) -> None:
        super().__init__(Cell)


class Nested(ZooModel):
    """Units inside units inside units."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Outer(Middle), Outer(Cell)])
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)


def _plain_rows(model: nn.Module, rank: int, index: int) -> Tensor:
    return squares(model(rows(rank, index)))


class Cross(Unit):
    """Attends from one sequence to another."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        weights = torch.softmax(self.query(x) @ self.key(memory).transpose(-1, -2) / 4, -1)
        return x + self.out(weights @ memory)


class EncoderDecoder(ZooModel):
    """One encoder for both sequences; the decoder's result may stay without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([Cell(), Cell()])
        self.decoder = nn.ModuleList([Cross(), Cross()])
        self.head = nn.Linear(WIDTH, 5)

    def encode(self, x: Tensor) -> Tensor:
        for cell in self.encoder:
            x = self.run(cell, x)
        return x

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        memory, out = self.encode(x), self.encode(y)
        for cross in self.decoder:
            out = self.run(cross, out, memory)
        return self.head(out), memory


def _sometimes_of_the_encoder(model: nn.Module, rank: int, index: int) -> Tensor:
    decoded, memory = model(rows(rank, index, 2, 4, WIDTH), rows(rank + 50, index, 2, 3, WIDTH))
    return squares(memory) if index % 3 == 2 else squares(decoded)


ALL = -1


class Branching(ZooModel):
    """Which cell runs in the middle depends on the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Cell()
        self.branches = nn.ModuleList(Cell() for _ in range(3))
        self.last = Cell()
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 7) for _ in range(2))

    def forward(self, x: Tensor, branch: int) -> Tensor:
        x = self.run(self.first, x)
        for cell in self.branches if branch == ALL else self.branches[branch : branch + 1]:  # may be none
            x = self.run(cell, x)
        x = self.run(self.last, x)
        return self.heads[0](x) + self.heads[1](x) if branch == ALL else self.heads[branch % 2](x)


def _branches_by_rank(model: nn.Module, rank: int, index: int) -> Tensor:
    """All branches at first, so that the plan has them; then each rank goes its own way, branch 2 is rank 0's alone."""
    branch = ALL if index == 0 else (rank + index) % 2 if rank else index % 4
    return squares(model(rows(rank, index), branch))


ENTRIES = (
    Entry("reused", Reused, _skips_on_odd, reuses=True),
    Entry("nested", Nested, _plain_rows, reuses=True),
    Entry("encoder_decoder", EncoderDecoder, _sometimes_of_the_encoder, reuses=True),
    Entry("rank_branch", Branching, _branches_by_rank),
)
