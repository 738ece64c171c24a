"""A case of the matrix, trained twice: sharded on real ranks, and unsharded in one process on the batches of all ranks.

The reference knows nothing of the engine: masters in fp32, cast to the compute dtype by ``functional_call``, the mean
over ranks of the gradients of their losses, ``torch.optim.AdamW`` and ``clip_grad_norm_``.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from support.zoo import ZOO
from support.zoo.entry import SMALL, Entry, Recompute
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.func import functional_call

import overlap
from overlap.engine.tree import cast_floating
from overlap.shard.partition import find_units

STEPS, MICRO_BATCHES = 3, 3
MAX_NORM = 0.05  # below every norm that occurs: the clipped cases really clip
# eps so large that a gradient of rounding noise does not become a step of size lr.
ADAMW = {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1}
DTYPES = {"fp32": None, "bf16": torch.bfloat16}

Accumulation = Literal["none", "each", "last"]


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    model: str
    stage: int
    world: int
    dtype: str
    accumulation: Accumulation
    recompute: Recompute
    clip: bool

    def __str__(self) -> str:
        clip = "clip" if self.clip else "noclip"
        return f"{self.model}-s{self.stage}-w{self.world}-{self.dtype}-{self.accumulation}-{self.recompute}-{clip}"

    @property
    def reference(self) -> "Reference":
        """What it is compared with; many cases share one."""
        return Reference(self.model, self.world, self.dtype, self.accumulation == "none", self.clip)


@dataclass(frozen=True)
class Reference:
    """What a run's numbers depend on."""

    model: str
    world: int
    dtype: str
    whole: bool
    clip: bool


class Part(NamedTuple):
    """What one rank has of a tensor: rows along ``dim``, or all of it where that is None."""

    value: Tensor
    dim: int | None


Named = dict[str, Part | None]


@dataclass
class Trace:
    """What a run gave.

    Attributes:
        losses: of each micro-batch in turn; by rank for a reference.
        gradients: by step, before clipping.
        norms: before clipping, by step; empty without clipping.
        params: final ones.
    """

    losses: Any
    gradients: list[Named]
    norms: list[float]
    params: Named


def sharded(case: Case) -> Trace:
    """Train on the ranks; no collective but the engine's own."""
    entry, micro_batches = ZOO[case.model], 1 if case.accumulation == "none" else MICRO_BATCHES
    model = _seeded(entry)
    model.recompute = case.recompute
    options = {"replicate_max_numel": SMALL, **entry.options, "param_dtype": DTYPES[case.dtype]}
    overlap.shard(model, stage=case.stage, unit=entry.unit, poison=True, **{"prefetch": 1, **options})
    update = overlap.AdamW(model.parameters(), **ADAMW, max_grad_norm=MAX_NORM if case.clip else None)
    trace = Trace([], [], [], {})
    for step in range(STEPS):
        for micro in range(micro_batches):
            quiet = case.accumulation == "last" and micro < micro_batches - 1
            with model.no_sync() if quiet else nullcontext():
                loss = entry.loss(model, dist.get_rank(), step * micro_batches + micro)
                (loss / micro_batches).backward()
            trace.losses.append(loss.item())
        trace.gradients.append({name: _part(param.grad) for name, param in model.named_parameters()})
        update.step()
        update.zero_grad()
        if case.clip:
            trace.norms.append(update.grad_norm.item())
    trace.params = {name: _part(param) for name, param in model.named_parameters()}
    return trace


def alone(wanted: Reference) -> Trace:
    """Train in one process."""
    entry, dtype = ZOO[wanted.model], DTYPES[wanted.dtype]
    micro_batches = 1 if wanted.whole else MICRO_BATCHES
    model = Plain(_seeded(entry), entry, dtype)
    update = torch.optim.AdamW(model.masters.values(), **ADAMW)
    trace = Trace([[] for _ in range(wanted.world)], [], [], {})
    for step in range(STEPS):
        for rank, losses in enumerate(trace.losses):
            for micro in range(micro_batches):
                loss = model.loss(rank, step * micro_batches + micro)
                losses.append(loss.item())
                model.add_gradients(loss / micro_batches, 1 / wanted.world)
        trace.gradients.append({name: _part(param.grad) for name, param in model.masters.items()})
        if wanted.clip:
            trace.norms.append(nn.utils.clip_grad_norm_(model.masters.values(), MAX_NORM).item())
        update.step()
        update.zero_grad()
    trace.params = {name: _part(param) for name, param in model.masters.items()}
    return trace


class Plain:
    """An unsharded model whose weights are cast for compute from masters in fp32."""

    def __init__(self, model: nn.Module, entry: Entry, dtype: torch.dtype | None) -> None:
        self.model, self.entry = model, entry
        named = dict(model.named_parameters())
        self.dtypes = {name: dtype if dtype and _is_float(param) else param.dtype for name, param in named.items()}
        self.masters = {name: _master(param) for name, param in named.items()}
        if dtype:
            for unit in (model, *find_units(model, entry.unit)):
                unit.register_forward_pre_hook(lambda _, *given: cast_floating(given, dtype), with_kwargs=True)

    def loss(self, rank: int, index: int) -> Tensor:
        """Of one batch of one rank."""
        weights = {name: master.to(self.dtypes[name]) for name, master in self.masters.items()}
        call = _Call(self.model, weights)
        return self.entry.loss(call, rank, index)

    def add_gradients(self, loss: Tensor, factor: float) -> None:
        """Add scaled gradients; what the loss does not depend on is left alone."""
        trainable = [master for master in self.masters.values() if master.requires_grad]
        for master, grad in zip(trainable, torch.autograd.grad(loss, trainable, allow_unused=True), strict=True):
            if grad is not None:
                master.grad = grad * factor + (0 if master.grad is None else master.grad)


class _Call(nn.Module):
    """Calls a model with other weights."""

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model, self.weights = model, weights

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.model, dict(self.weights), args, kwargs)


def _master(param: nn.Parameter) -> Tensor:
    trainable = param.requires_grad
    return param.detach().to(torch.float32 if trainable else param.dtype, copy=True).requires_grad_(trainable)


def _seeded(entry: Entry) -> Any:
    torch.manual_seed(0)
    return entry.build()


def _is_float(param: Tensor) -> bool:
    return param.is_floating_point()


def _part(value: Tensor | None) -> Part | None:
    if not isinstance(value, DTensor):
        return None if value is None else Part(_copied(value), None)
    (placement,) = value.placements
    return Part(_copied(value.to_local()), placement.dim if isinstance(placement, Shard) else None)


def _copied(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format)
