"""Language models: plain, tied inside the root, tied across units, adapted by low-rank matrices."""

import torch
from support.zoo.entry import WIDTH, Entry, Unit, ZooModel, source
from torch import Tensor, nn
from torch.nn import functional as F

VOCAB, LENGTH, HEADS, HIDDEN = 37, 7, 2, 37  # 37 rows divide by no number of ranks


class Block(Unit):
    """Causal attention and a two-layer map, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(ZooModel):
    """Embedding, blocks and head; the root unit owns all but the blocks."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(self.norm(x))


def tokens_loss(model: nn.Module, rank: int, index: int) -> Tensor:
    """Next-token cross entropy."""
    tokens = torch.randint(VOCAB, (2, LENGTH + 1), generator=source(rank, index))
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


class Table(Unit):
    """An embedding that is a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCAB, WIDTH) * 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)


class Head(Unit):
    """A head that is a unit of its own, with the table's weight."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.weight = table.weight
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.weight)


class TiedAcross(ZooModel):
    """The table and the head are two units with one weight, and so are the first and the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.blocks[2].up.weight = self.blocks[0].up.weight
        self.head = Head(self.table)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in (*self.blocks, self.head):
            x = self.run(block, x)
        return x


class Adapted(nn.Module):
    """A frozen linear map beside a trainable one of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, WIDTH) * 0.3)
        self.up = nn.Parameter(torch.randn(WIDTH, 2) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


class AdaptedBlock(Unit):
    """Two adapted maps and a frozen norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False)
        self.inner, self.outer = Adapted(), Adapted()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class LoRA(ZooModel):
    """Frozen but for adapters: the first block's input wants no gradient, the middle block has nothing to train."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH).requires_grad_(False)
        self.blocks = nn.ModuleList(AdaptedBlock() for _ in range(3))
        self.blocks[1].requires_grad_(False)
        self.head = nn.Linear(WIDTH, VOCAB).requires_grad_(False)
        self.head.bias.requires_grad_(True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)


ENTRIES = (
    Entry("gpt", GPT, tokens_loss),
    Entry("tied_in_root", lambda: GPT(tied=True), tokens_loss, reuses=True),
    Entry("tied_across", TiedAcross, tokens_loss, reuses=True),
    Entry("lora", LoRA, tokens_loss, options={"replicate_max_numel": 24}),
)
