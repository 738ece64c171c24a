"""Models with one fault each, factories and batches; every function is called on ranks by name."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import overlap
from overlap.demo.model import GPT, GPTConfig
from overlap.verify import VerifyReport, verify

WIDTH, BLOCKS = 16, 3
GPT_CONFIG = GPTConfig(context=8, layers=3, heads=2, width=24, vocab=37)
"""37 rows divide by neither 2 nor 3."""


class Block(nn.Module):
    """A linear map with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Model(nn.Module):
    """Blocks and a head; the second block may be of another kind."""

    def __init__(self, second: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), second(), Block()])
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def seeded(second: Callable[[], nn.Module] = Block) -> Model:
    torch.manual_seed(0)
    return Model(second)


def data(rank: int, step: int) -> Tensor:
    source = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, WIDTH, generator=source)


def check(make: Callable[[], nn.Module] = seeded, batches: Any = data, loss: Any = None, **given: Any) -> VerifyReport:
    """Verify with blocks as units and their matrices sharded."""
    torch.manual_seed(0)
    options = {"unit": "blocks.*", "replicate_max_numel": WIDTH, **given.pop("options", {})}
    return verify(make, batches, loss, options=options, **{"steps": 3, **given})


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return GPT(GPT_CONFIG)


def tokens(rank: int, step: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(100 * step + rank)
    drawn = torch.randint(0, GPT_CONFIG.vocab, (2, GPT_CONFIG.context + 1), generator=source)
    return drawn[:, :-1], drawn[:, 1:]


# -- faults ------------------------------------------------------------------------------------------------------------


class StaleBlock(Block):
    """Reads an alias of its weight that it took before sharding."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = self.linear.weight.detach()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(x, self.mirror)


class CloneBlock(Block):
    """Uses a copy of its weight, so that the weight itself is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.copy = self.linear.weight.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        return x + F.linear(x, self.copy, self.linear.bias)


class ClampedBlock(Block):
    """Writes to its weight in forward, where the engine cannot see it: lost when the slot is let go."""

    def forward(self, x: Tensor) -> Tensor:
        self.linear.weight.data.clamp_(-0.05, 0.05)
        return super().forward(x)


class NormBlock(Block):
    """Keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class NoisyBlock(Block):
    """Draws from a source that no seed reaches."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + int.from_bytes(os.urandom(1), "big") / 256)


class RankBlock(Block):
    """Computes something else on each rank."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + dist.get_rank())


class CenteredBlock(Block):
    """Takes the mean over all ranks' batches, as SyncBatchNorm does: a collective inside forward."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        dist.all_reduce(mean)
        return super().forward(x - mean / dist.get_world_size())


class Wandering(Model):
    """Another order of blocks in every step: its own counter decides."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for number in range(BLOCKS):
            x = self.blocks[(number + self.calls) % BLOCKS](x)
        return self.head(x)


class TwoFaced(Model):
    """Runs its blocks backwards once it is sharded."""

    def forward(self, x: Tensor) -> Tensor:
        for block in reversed(self.blocks) if is_sharded(self) else self.blocks:
            x = block(x)
        return self.head(x)


class Between(Model):
    """Does something else between two blocks once it is sharded."""

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x + 0.5 if number == 2 and is_sharded(self) else x)
        return self.head(x)


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, overlap.ShardedModule)


def output_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def local(param: nn.Parameter) -> Tensor:
    return param.to_local() if isinstance(param, DTensor) else param
