"""What the figures were measured on, as words."""

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from overlap.ops import face_name


def describe(device: torch.device, threads: int, faces: Sequence[str]) -> dict[str, str | int]:
    """Return processor, threads, versions and the faces that are measured; the GPU too where that is measured."""
    words: dict[str, str | int] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cpu": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "overlap": _version("overlap-engine"),
        "triton": _version("triton"),
        "deepspeed": _version("deepspeed"),
        "faces": ", ".join(faces),
    }
    if device.type == "cuda":
        words["cuda"] = str(torch.version.cuda)
        words["compute capability"] = "{}.{}".format(*torch.cuda.get_device_capability(device))
    return words


def describe_ranks() -> dict[str, str | int]:
    """Return the same for ranks of one thread on the CPU, and who runs our ops there."""
    words = describe(torch.device("cpu"), threads=1, faces=())
    del words["faces"], words["device"]
    return {**words, "our ops": face_name(torch.device("cpu"))}


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let torch, the native ops (they follow torch) and DeepSpeed use ``count`` threads."""
    before = torch.get_num_threads()
    _set_threads(count)
    try:
        yield
    finally:
        _set_threads(before)


def _set_threads(count: int) -> None:
    torch.set_num_threads(count)
    try:  # DeepSpeed's extension runs on the system's OpenMP library, torch on one of its own
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(count)
    except OSError:
        return  # where it is not installed, nothing runs on it


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
