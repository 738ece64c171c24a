"""Which face of an op runs: CPU -> native C++, CUDA -> Triton, anything else or nothing built -> reference.

The words are those of every fallback in this package: ``off``, ``on``, ``auto``; ``auto`` says once what
it could not have.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, Protocol, cast, get_args

import torch
from torch import Tensor

from overlap.config import native_mode_from_env
from overlap.errors import ConfigError, message
from overlap.ops import reference
from overlap.ops.coefficients import AdamWCoefficients
from overlap.ops.slots import PackSlot

NativeMode = Literal["auto", "on", "off"]

_log = logging.getLogger("overlap")
_native_mode: NativeMode | None = None


class Face(Protocol):
    """What reference.py, native.py and triton_ops.py each provide; arguments are already checked."""

    def pack(
        self,
        grads: Sequence[Tensor | None],
        bucket: Tensor,
        slots: tuple[PackSlot, ...],
        *,
        scale: float,
        accumulate: bool,
    ) -> None: ...

    def adamw(
        self,
        master: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        grad: Tensor,
        shard: Tensor | None,
        coefficients: AdamWCoefficients,
        *,
        grad_scale: Tensor | None,
        skip: Tensor | None,
        maximize: bool,
    ) -> None: ...

    def grad_norm(self, grad: Tensor, out: Tensor, *, accumulate: bool) -> None: ...

    def reduce_sum(self, rows: Sequence[Tensor], out: Tensor, *, scale: float, accumulate: bool) -> None: ...


def configure(native: NativeMode) -> None:
    """Choose the CPU face: ``auto`` takes the extension if it was built, ``on`` insists, ``off`` refuses it.

    Until this is called, the environment variable ``OVERLAP_NATIVE`` decides.

    Raises:
        ConfigError: unknown word, or ``on`` where the extension is missing.
    """
    global _native_mode
    _native_mode = _checked(native)
    _cpu_face.cache_clear()


def _checked(mode: str) -> NativeMode:
    if mode not in get_args(NativeMode):
        raise ConfigError(message("OVERLAP_NATIVE", "be auto, on or off", mode, "use one of these words"))
    if mode == "on" and not _native_built():
        cure = "reinstall where a C++ compiler is found, or use auto"
        raise ConfigError(message("OVERLAP_NATIVE=on", "find overlap._native", "no such module", cure))
    return cast(NativeMode, mode)


def face_of(device: torch.device) -> Face:
    """Return the face that runs ops on ``device``."""
    if device.type == "cpu":
        return _cpu_face()
    return _cuda_face() if device.type == "cuda" else cast(Face, reference)


def face_name(device: torch.device) -> str:
    """Return ``reference``, ``native`` or ``triton``, for reports."""
    module: str = face_of(device).__name__  # type: ignore[attr-defined]
    return module.rpartition(".")[2].removesuffix("_ops")


def _native_built() -> bool:
    return find_spec("overlap._native") is not None


@lru_cache(maxsize=1)
def _cpu_face() -> Face:
    mode = _native_mode or _checked(native_mode_from_env())
    if mode != "off" and _native_built():
        return cast(Face, import_module("overlap.ops.native"))
    if mode == "auto":
        _log.warning("overlap._native is not built: CPU ops run in plain torch (slower, same results)")
    return cast(Face, reference)


@lru_cache(maxsize=1)
def _cuda_face() -> Face:
    if find_spec("triton") is not None:
        return cast(Face, import_module("overlap.ops.triton_ops"))
    _log.warning("triton is not installed: CUDA ops run in plain torch (slower, same results)")
    return cast(Face, reference)
