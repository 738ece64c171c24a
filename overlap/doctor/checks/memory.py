"""Locked memory, shared memory, huge pages."""

from collections.abc import Iterator

from overlap.doctor.facts import Facts
from overlap.doctor.finding import Finding, note, ok, warning

SHM_WANTED = 1 << 30
"""Well above the 64 MiB of a container that was not told otherwise: NCCL and loaders both pass data through it."""


def check(facts: Facts) -> Iterator[Finding]:
    """What a process may lock, share and map."""
    yield _locked(facts)
    yield _shared(facts.memory.shm_bytes)
    yield _huge(facts)


def _locked(facts: Facts) -> Finding:
    limit, verbs = facts.memory.locked_limit, facts.network.infiniband
    if limit is None:
        return ok("locked memory", "no limit")
    value = f"{limit / 2**20:,.0f} MiB"
    if verbs:
        why = f"NCCL registers its buffers with {verbs[0]}, which counts as locked: it fails with 'ibv_reg_mr'"
        return warning("locked memory", value, why, "raise it: ulimit -l unlimited, or docker run --ulimit memlock=-1")
    return note("locked memory", value, "enough without RDMA devices; memory pinned by CUDA does not count")


def _shared(size: int | None) -> Finding:
    if size is not None and size >= SHM_WANTED:
        return ok("/dev/shm", f"{size / 2**30:.1f} GiB")
    value = "missing" if size is None else f"{size / 2**20:,.0f} MiB"
    why = "ranks of a host without peer access, and loaders with workers, pass data through it; too small: bus errors"
    return warning("/dev/shm", value, why, "give the container more: docker run --shm-size=8g, or --ipc=host")


def _huge(facts: Facts) -> Finding:
    mode, asked = facts.memory.huge_pages, facts.environment.get("THP_MEM_ALLOC_ENABLE") == "1"
    if mode is None:
        return note("huge pages", "unknown", "the kernel does not say")
    if mode == "always" or (mode == "madvise" and asked):
        return ok("huge pages", mode)
    why = "large buffers of updates on CPU meet more page faults and TLB misses"
    if mode == "madvise":
        return note("huge pages", mode, why, "set THP_MEM_ALLOC_ENABLE=1: torch then asks for them")
    return note("huge pages", mode, why, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
