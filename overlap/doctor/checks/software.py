"""Versions that fit each other."""

from collections.abc import Iterator

from overlap.doctor.facts import Facts
from overlap.doctor.finding import Finding, error, ok, warning

PYTHON, TORCH = ((3, 11), (3, 14)), ((2, 11), (2, 15))
"""Supported: from the first up to, and without, the second (as in pyproject.toml)."""


def check(facts: Facts) -> Iterator[Finding]:
    """Overlap, Python, torch and the backends of torch.distributed."""
    software = facts.software
    yield ok("overlap", software.overlap)
    yield _version("Python", ".".join(map(str, software.python)), software.python[:2], PYTHON)
    yield _version("torch", software.torch, release(software.torch), TORCH)
    yield _build(facts)
    if software.gloo:
        yield ok("gloo", "in torch")
    else:
        why = "hosts settle plans and used parameters over it, on GPUs too"
        yield error("gloo", "not in torch", why, "install a torch build with USE_GLOO=1")
    if software.cuda is not None:
        yield _nccl(software.nccl)


def release(version: str) -> tuple[int, int]:
    """``2.13.0+cpu`` -> (2, 13)."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _version(
    name: str, shown: str, met: tuple[int, ...], supported: tuple[tuple[int, int], tuple[int, int]]
) -> Finding:
    low, high = supported
    if low <= met < high:
        return ok(name, shown)
    wanted = f"{low[0]}.{low[1]} to {high[0]}.{high[1] - 1}"
    return warning(name, shown, f"Overlap is tested with {wanted}", f"install {name} {wanted}")


def _build(facts: Facts) -> Finding:
    cuda, installed = facts.software.cuda, facts.gpus.installed
    if cuda is not None:
        return ok("torch build", f"CUDA {cuda}")
    if installed == 0:
        return ok("torch build", "CPU")
    why = f"the driver knows {installed} GPU(s), and this torch can use none"
    return error("torch build", "CPU", why, "install a CUDA build of torch")


def _nccl(version: str | None) -> Finding:
    if version is not None:
        return ok("NCCL", version)
    return error("NCCL", "not in torch", "lanes on GPUs talk over it", "install a torch build with USE_NCCL=1")
