"""Which face of an op runs: native C++ on CPU, CUDA C++ or Triton on CUDA, else (or with nothing built) the reference.

The words are those of every fallback in this package: ``off``, ``on``, ``auto``; ``auto`` says once what it could
not have.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from overlap.config import cuda_mode_from_env, native_mode_from_env
from overlap.errors import ConfigError, message
from overlap.ops import check
from overlap.ops.face import Face

FaceMode = Literal["auto", "on", "off"]
_Op = Callable[..., None]

_log = logging.getLogger("overlap")
_native_mode: FaceMode | None = None
_cuda_mode: FaceMode | None = None


class Checked:
    """A face that trusts its arguments, behind the checks."""

    def __init__(self, face: ModuleType) -> None:
        """Put the check of the same name before each op of ``face``."""
        self.__name__ = face.__name__
        for name in check.__all__:
            setattr(self, name, _in_turn(getattr(check, name), getattr(face, name)))


def _in_turn(test: _Op, op: _Op) -> _Op:
    def call(*arguments: object) -> None:
        test(*arguments)
        op(*arguments)

    return call


def checked(face: ModuleType) -> Face:
    """Return ``face`` itself if it verifies its arguments (``VERIFIES``), else behind the checks."""
    return cast(Face, face if getattr(face, "VERIFIES", False) else Checked(face))


def configure(native: FaceMode | None = None, cuda: FaceMode | None = None) -> None:
    """Choose the faces: ``auto`` takes what was built and can run, ``on`` insists on it, ``off`` refuses it.

    Until this is called, the environment variables ``OVERLAP_NATIVE`` and ``OVERLAP_CUDA_KERNELS`` decide.

    Args:
        native: the C++ extension for CPU tensors; None leaves the choice as it is.
        cuda: the CUDA C++ kernels for CUDA tensors, instead of Triton's; None leaves the choice as it is.

    Raises:
        ConfigError: unknown word, or ``on`` where it is missing.
    """
    global _native_mode, _cuda_mode
    if native is not None:
        _native_mode = _checked_native("native", native)
        _cpu_face.cache_clear()
    if cuda is not None:
        _cuda_mode = _checked_cuda("cuda", cuda)
        _cuda_face.cache_clear()


def face_of(tensor: Tensor) -> Face:
    """Return the face that runs ops on the device of ``tensor``; for what is no tensor, one that says so."""
    try:
        on_cpu = tensor.is_cpu
    except AttributeError:
        return _reference()
    if on_cpu:
        return _cpu_face()
    return _cuda_face() if tensor.is_cuda else _reference()


def face_name(device: torch.device) -> str:
    """Return ``reference``, ``native``, ``triton`` or ``cuda``, for reports."""
    faces = {"cpu": _cpu_face, "cuda": _cuda_face}
    module: str = faces.get(device.type, _reference)().__name__  # type: ignore[attr-defined]
    return module.rpartition(".")[2].removesuffix("_face")


def _word(origin: str, mode: str) -> FaceMode:
    if mode not in get_args(FaceMode):
        raise ConfigError(message(origin, "be auto, on or off", mode, "use one of these words"))
    return cast(FaceMode, mode)


def _checked_native(origin: str, mode: str) -> FaceMode:
    if _word(origin, mode) == "on" and not _native_built():
        cure = "reinstall where a C++ compiler is found, or use auto"
        raise ConfigError(message(f"{origin}=on", "find overlap._native", "no such module", cure))
    return cast(FaceMode, mode)


def _checked_cuda(origin: str, mode: str) -> FaceMode:
    if _word(origin, mode) == "on" and not _cuda_available():
        cure = "reinstall where nvcc is found and run on an NVIDIA GPU with Triton, or use auto"
        raise ConfigError(message(f"{origin}=on", "find kernels and a driver", "none", cure))
    return cast(FaceMode, mode)


def _native_built() -> bool:
    return find_spec("overlap._native") is not None


def _triton_installed() -> bool:
    return find_spec("triton") is not None


def _cuda_available() -> bool:
    """Whether the CUDA C++ face can run; for the ops that it leaves to Triton it needs that too."""
    return _triton_installed() and bool(import_module("overlap.ops.cuda_face").available())


@lru_cache(maxsize=1)
def _reference() -> Face:
    return checked(import_module("overlap.ops.reference"))


@lru_cache(maxsize=1)
def _cpu_face() -> Face:
    mode = _native_mode or _checked_native("OVERLAP_NATIVE", native_mode_from_env())
    if mode != "off" and _native_built():
        return checked(import_module("overlap.ops.native"))
    if mode == "auto":
        _log.warning("overlap._native is not built: CPU ops run in plain torch (slower, same results)")
    return _reference()


@lru_cache(maxsize=1)
def _cuda_face() -> Face:
    mode = _cuda_mode or _checked_cuda("OVERLAP_CUDA_KERNELS", cuda_mode_from_env())
    if mode != "off" and _cuda_available():
        return checked(import_module("overlap.ops.cuda_face"))
    if _triton_installed():
        if mode == "auto":
            reason = import_module("overlap.ops.cuda_face").why_not()
            _log.info("CUDA ops run in Triton, not in the CUDA C++ kernels: %s", reason)
        return checked(import_module("overlap.ops.triton_face"))
    _log.warning("triton is not installed: CUDA ops run in plain torch (slower, same results)")
    return _reference()
