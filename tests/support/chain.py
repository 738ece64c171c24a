"""A chain of linear blocks and its unsharded twin: for programs that do unusual things with a model."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import overlap

WIDTH, BLOCKS = 16, 4


class Block(nn.Module):
    """A linear map with a non-linearity whose backward needs its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) + x


class Chain(nn.Module):
    """Blocks one behind another."""

    def __init__(self, make: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def chain(make: Callable[[], nn.Module] = Block) -> Chain:
    """The same weights on every rank and in every twin."""
    torch.manual_seed(0)
    return Chain(make)


def sharded_chain(make: Callable[[], nn.Module] = Block, **options: Any) -> Chain:
    """Every block a unit; freed slots are poisoned, matrices sharded."""
    return overlap.shard(
        chain(make), unit="blocks.*", **{"replicate_max_numel": WIDTH, "poison": True, "prefetch": 1, **options}
    )


def data(step: int = 0, rank: int | None = None) -> Tensor:
    """A rank's batch of a step; this rank's by default."""
    source = torch.Generator().manual_seed(100 * step + (dist.get_rank() if rank is None else rank))
    return torch.randn(3, WIDTH, generator=source)


def twin_gradients(twin: nn.Module, loss: Callable[[nn.Module, int], Tensor]) -> None:
    """Give the twin the mean over ranks of the gradients of their losses."""
    world = dist.get_world_size()
    sum((loss(twin, rank) for rank in range(world)), start=torch.zeros(())).div(world).backward()


def close(mine: Iterable[nn.Parameter], theirs: Iterable[nn.Parameter], *, of: str = "grad") -> bool:
    """Whether parameters, or their gradients, agree within fp32 rounding."""
    return all(
        torch.allclose(_whole(_part(a, of)), _part(b, of), rtol=1e-5, atol=1e-6)
        for a, b in zip(mine, theirs, strict=True)
    )


def _part(param: nn.Parameter, of: str) -> Tensor:
    part = param.grad if of == "grad" else param.detach()
    assert part is not None
    return part


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train_beside_twin(model: Chain, micros: int = 1) -> Iterator[int]:
    """Four clipped AdamW steps of a few micro-batches each, compared with one process; yields after each.

    Gradients, norm and weights agree, and the plan has been followed.
    """
    twin = chain()
    mine = overlap.AdamW(model.parameters(), lr=1e-2, max_grad_norm=0.05)
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    for step in range(4):
        mine.zero_grad()
        theirs.zero_grad()
        for micro in range(micros):
            batch = step * micros + micro
            model.set_requires_gradient_sync(micro == micros - 1)
            model(data(batch)).square().mean().backward()
            twin_gradients(twin, lambda net, rank, batch=batch: net(data(batch, rank)).square().mean())
        assert close(model.parameters(), twin.parameters()), step
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
        mine.step()
        theirs.step()
        torch.testing.assert_close(mine.grad_norm[0], norm)
        assert close(model.parameters(), twin.parameters(), of="data"), step
        yield step
    assert overlap.engine_of(model).deviations == 0
