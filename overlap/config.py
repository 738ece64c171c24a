"""Options, and the only reader of environment variables."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from overlap.errors import ConfigError, message

STAGES = (0, 1, 2, 3)
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardOptions:
    """How a model is sharded, and how its steps are scheduled."""

    stage: int = 3
    """What is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."""

    param_dtype: torch.dtype | None = None
    """Compute dtype: what is gathered and what forward and backward use. None keeps each parameter's own. Each unit has
    its own value: shard a norm or a router with ``torch.float32`` to keep it so in a bf16 model."""

    reduce_dtype: torch.dtype = torch.float32
    """Dtype of gradients on the wire. Sums are accumulated in fp32 whatever it is."""

    grad_dtype: torch.dtype = torch.float32
    """Dtype of the reduced gradient that the optimizer reads. Under ``no_sync`` gradients accumulate in the wider of
    this and ``reduce_dtype``."""

    output_dtype: torch.dtype | None = None
    """Floating outputs of the module are cast to it; None leaves them."""

    cast_forward_inputs: bool = True
    """Cast floating inputs of the module to ``param_dtype`` when that is set."""

    reshard_after_forward: bool = True
    """Stage 3 only: let parameters go after forward and gather them again for backward. False gathers once and gives
    the unit memory of its own. Each unit has its own value."""

    masters: Literal["copy", "mesh"] = "copy"
    """Hybrid sharding: what fp32 masters, gradients and optimizer states are sharded over: the ranks that share one
    copy of the model, or all ranks of the mesh ``[replicate, shard]``. Parameters are gathered within a copy anyway."""

    prefetch: int = 2
    """A gather is issued this many units before the unit that needs it. Stage 3 has memory for one unit more: so many
    stay gathered from the end of forward to the begin of backward, and need not travel twice. 1 saves memory."""

    bucket_bytes: int = 64 << 20
    """A unit's gradients are reduced in pieces of at most this size (a larger parameter makes its own piece)."""

    replicate_max_numel: int = 8192
    """Parameters of at most this many elements stay whole on every rank; their gradients share one all-reduce."""

    init: Literal["broadcast", "verify"] = "broadcast"
    """Initial weights: ``broadcast`` sends rank 0's; ``verify`` raises if the ranks' differ."""

    init_fn: Callable[[torch.nn.Module], None] | None = None
    """Fills a module that was built on the meta device; None calls ``reset_parameters()`` of its submodules."""

    lanes: Literal["auto", "inline"] = "auto"
    """``auto`` runs communication on its own lanes; ``inline`` runs it where compute needs it, to compare with."""

    timeline: bool = False
    """Record a span per op; read it with ``overlap.engine_of(model).timeline``."""

    nvtx: bool = False
    """Push NVTX ranges in domain ``overlap``."""

    poison: bool = False
    """Debug: fill freed slots and buckets with NaN, so that a read at the wrong time shows."""

    timeout_s: float = 600.0
    """CPU lanes: how long compute waits for one event before it raises ``DesyncError``. On CUDA the host does not wait;
    there NCCL's own watchdog has the say."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: naming the first field that is wrong.
        """
        _one_of("stage", self.stage, STAGES)
        _one_of("init", self.init, ("broadcast", "verify"))
        _one_of("lanes", self.lanes, ("auto", "inline"))
        _one_of("masters", self.masters, ("copy", "mesh"))
        for name in ("param_dtype", "output_dtype"):
            _floating(name, getattr(self, name), optional=True)
        for name in ("reduce_dtype", "grad_dtype"):
            _floating(name, getattr(self, name), optional=False)
        _at_least("prefetch", self.prefetch, 1)
        _at_least("bucket_bytes", self.bucket_bytes, 1)
        _at_least("replicate_max_numel", self.replicate_max_numel, 0)
        for name in ("cast_forward_inputs", "reshard_after_forward", "timeline", "nvtx", "poison"):
            _one_of(name, getattr(self, name), (True, False))
        if isinstance(self.timeout_s, bool) or not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ConfigError(message("timeout_s", "be a number above 0", self.timeout_s, "give seconds"))
        if self.init_fn is not None and not callable(self.init_fn):
            raise ConfigError(message("init_fn", "be callable", self.init_fn, "pass a function of one module"))

    @property
    def sharded(self) -> bool:
        """Whether anything is sharded at all."""
        return self.stage > 0

    @property
    def resident(self) -> bool:
        """Whether full parameters stay from step to step."""
        return self.stage < 3


def options_from(given: dict[str, Any]) -> ShardOptions:
    """Build options from keyword arguments.

    Raises:
        ConfigError: unknown name (with the nearest known one) or wrong value.
    """
    known = [field.name for field in fields(ShardOptions)]
    for name in given:
        if name not in known:
            raise ConfigError(message("option", f"be one of {', '.join(known)}", name, _nearest(name, known)))
    return ShardOptions(**given)


def missing_launcher_variables() -> list[str]:
    """The variables a launcher such as torchrun would have set, and that are not set here."""
    return [name for name in LAUNCHER_VARIABLES if name not in os.environ]


def environment() -> dict[str, str]:
    """All variables of this process, as they are now."""
    return dict(os.environ)


def native_mode_from_env() -> str:
    """``OVERLAP_NATIVE``: whether CPU ops use the C++ extension (auto, on, off; see ``overlap.ops.configure``)."""
    return os.environ.get("OVERLAP_NATIVE", "auto").lower()


def cuda_mode_from_env() -> str:
    """``OVERLAP_CUDA_KERNELS``: whether CUDA ops use the CUDA C++ kernels (auto, on, off; see ``configure``)."""
    return os.environ.get("OVERLAP_CUDA_KERNELS", "auto").lower()


def shared_memory_mode_from_env() -> str:
    """``OVERLAP_SHARED_MEMORY``: whether CPU ranks of one host exchange through memory (auto, on, off)."""
    return os.environ.get("OVERLAP_SHARED_MEMORY", "auto").lower()


def nvtx_tool_attached() -> bool:
    """``NVTX_INJECTION64_PATH``: whether a tool such as Nsight Systems listens to this process."""
    return bool(os.environ.get("NVTX_INJECTION64_PATH"))


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"did you mean {near[0]!r}?"


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(value == each and type(value) is type(each) for each in allowed):  # True is not stage 1
        shown = ", ".join(map(str, allowed))
        raise ConfigError(message(name, f"be one of {shown}", value, "choose one of them"))


def _floating(name: str, value: object, *, optional: bool) -> None:
    if optional and value is None:
        return
    if value not in (torch.float32, torch.bfloat16, torch.float16):
        raise ConfigError(
            message(name, "be torch.float32, torch.bfloat16 or torch.float16", value, "choose one of them")
        )


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(message(name, f"be an integer of at least {least}", value, "raise it"))
