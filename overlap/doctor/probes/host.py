"""Cores, limits and memory of this process, from the kernel's files."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import torch

from overlap.doctor.facts import Cpu, Memory

_CGROUP = Path("/sys/fs/cgroup")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_SHM = Path("/dev/shm")


def look_at_cpu(ranks: int) -> Cpu:
    """Cores and threads."""
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return Cpu(cores=cores, allowed=allowed, quota=_quota(), threads=torch.get_num_threads(), ranks=ranks)


def look_at_memory() -> Memory:
    """Limits and habits."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Memory(
        locked_limit=None if soft == resource.RLIM_INFINITY else soft, shm_bytes=_size(_SHM), huge_pages=_huge_pages()
    )


def parse_quota(text: str) -> float | None:
    """``cpu.max`` of cgroup v2 (``150000 100000``, ``max 100000``) in cores; None for no limit."""
    quota, period = text.split()
    return None if quota == "max" else int(quota) / int(period)


def _quota() -> float | None:
    """The tightest limit of this process's cgroup and those above it; a container sees its own as the root."""
    limits = (parse_quota(text) for folder in _cgroups() if (text := _read(folder / "cpu.max")))
    return min((limit for limit in limits if limit is not None), default=_quota_v1())


def _quota_v1() -> float | None:
    quota, period = (_read(_CGROUP / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _cgroups() -> list[Path]:
    found = re.search(r"^0::/(.*)$", _read(Path("/proc/self/cgroup")) or "", re.MULTILINE)
    own = _CGROUP / found[1] if found else _CGROUP
    return [own, *(folder for folder in own.parents if folder.is_relative_to(_CGROUP))]


def _size(folder: Path) -> int | None:
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    return space.f_frsize * space.f_blocks


def _huge_pages() -> str | None:
    chosen = re.search(r"\[(\w+)\]", _read(_HUGE_PAGES) or "")
    return chosen[1] if chosen else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
