"""The same chain of tiny units three times: plain, under this engine, under FSDP2."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer

import overlap
from overlap.bench.host.idle import IdleGather, IdleReduction
from overlap.bench.host.settings import ROWS, Shape

COLUMNS = 2
MAX_NORM = 1.0


class TinyUnit(nn.Module):
    """Adds each of its parameters: next to no compute, so that what is around it shows."""

    def __init__(self, params: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(ROWS, COLUMNS) for _ in range(params))

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape ``[ROWS, COLUMNS]``."""
        for weight in self.weights:
            x = x + weight
        return x


class Chain(nn.Module):
    """Units one after another; no parameters of its own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.units = nn.ModuleList(TinyUnit(shape.params) for _ in range(shape.units))

    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar."""
        for unit in self.units:
            x = unit(x)
        return x.sum()


@dataclass(frozen=True)
class Subject:
    """What is measured: forward with backward, and clipping with the update."""

    forward_backward: Callable[[], None]
    update: Callable[[], None]
    forget: Callable[[], None]


def plain(shape: Shape) -> Subject:
    """Build the model as it is: what the others cost more is their own."""
    model = Chain(shape)
    return _subject(model, AdamW(model.parameters(), fused=True), clip_first=True)


def ours(shape: Shape, lanes: Literal["auto", "inline"] = "auto") -> Subject:
    """Build it at stage 3. All parameters are sharded: at this size the default would keep them whole.

    Args:
        shape: of the model.
        lanes: ``inline`` does without threads, as CUDA's lanes do.
    """
    model = overlap.shard(Chain(shape), stage=3, unit=TinyUnit, replicate_max_numel=0, lanes=lanes)
    overlap.engine_of(model)  # opens its communicators now
    return _subject(model, overlap.AdamW(model.parameters(), max_grad_norm=MAX_NORM), clip_first=False)


def fsdp2(shape: Shape, world: int) -> Subject:
    """Build it with FSDP2's defaults."""
    model, mesh = Chain(shape), init_device_mesh("cpu", (world,))
    for module in (*model.units, model):
        _without_communication(fully_shard(module, mesh=mesh))
    return _subject(model, AdamW(model.parameters(), fused=True), clip_first=True)


def _without_communication(module: FSDPModule) -> None:
    gather: Any = IdleGather()
    reduction: Any = IdleReduction()
    module.set_custom_all_gather(gather)
    module.set_custom_reduce_scatter(reduction)


def _subject(model: nn.Module, optimizer: Optimizer, *, clip_first: bool) -> Subject:
    params = list(model.parameters())
    x = torch.zeros(ROWS, COLUMNS)

    def clip_and_step() -> None:
        clip_grad_norm_(params, MAX_NORM)
        optimizer.step()

    def forward_backward() -> None:
        model(x).backward()

    update: Callable[[], Any] = clip_and_step if clip_first else optimizer.step
    return Subject(forward_backward, update, partial(optimizer.zero_grad, set_to_none=True))
