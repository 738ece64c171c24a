"""Models for ranks: tiny, yet with all that sharding must get right.

257 and 37 rows divide by no number of ranks here; biases and norms are small enough to be replicated; the route says
which blocks run, in which order; checkpointing recomputes whole blocks or their insides.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VOCAB, WIDTH, HIDDEN, BLOCKS = 257, 16, 37, 3
SMALL = 64
"""For ``replicate_max_numel``: norms and biases of blocks are replicated, matrices are not."""

Recompute = Literal["none", "around", "inside", "both"]


class Block(nn.Module):
    """Mixes positions, then widens and narrows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.recompute, self.reentrant = False, False

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return x + checkpoint(self.inside, x, use_reentrant=self.reentrant)
        return x + self.inside(x)

    def inside(self, x: Tensor) -> Tensor:
        mixed = x.cumsum(1) / x.shape[1]
        return self.down(F.gelu(self.up(self.norm(mixed))))


class Model(nn.Module):
    """Embedding, blocks, head; with ``tied`` the head's weight is the embedding's."""

    def __init__(self, *, tied: bool = False, recompute: Recompute = "none", reentrant: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCAB)
        if tied:
            self.head.weight = self.embedding.weight
        self.around, self.reentrant = recompute in ("around", "both"), reentrant
        for block in self.blocks:
            block.recompute, block.reentrant = recompute in ("inside", "both"), reentrant

    def forward(self, tokens: Tensor, route: Sequence[int] | None = None) -> Tensor:
        x = self.embedding(tokens)
        for number in range(BLOCKS) if route is None else route:
            x = self._block(number, x)
        return self.head(x)

    def _block(self, number: int, x: Tensor) -> Tensor:
        if self.around and torch.is_grad_enabled():
            return checkpoint(self.blocks[number], x, use_reentrant=self.reentrant)
        return self.blocks[number](x)


def seeded(seed: int = 0, **traits: object) -> Model:
    """The same weights on every rank."""
    torch.manual_seed(seed)
    return Model(**traits)


def loss_of(model: nn.Module, rank: int, step: int, route: Sequence[int] | None = None) -> Tensor:
    """Mean cross entropy on the batch that a rank has in a step; any process can compute any rank's."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(VOCAB, (2, 9), generator=source)
    logits = model(tokens[:, :-1]) if route is None else model(tokens[:, :-1], route)
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
