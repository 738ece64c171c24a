"""Cores for compute, cores for lanes."""

from collections.abc import Iterator

from overlap.doctor.facts import Cpu, Facts
from overlap.doctor.finding import Finding, error, note, ok, warning


def check(facts: Facts) -> Iterator[Finding]:
    """The affinity mask, the cgroup's quota, and what compute leaves for lanes."""
    cpu = facts.cpu
    yield _mask(cpu)
    if cpu.quota is not None:
        yield _quota(cpu)
    yield _compute(cpu, on_cpu=not facts.gpus.seen)


def _mask(cpu: Cpu) -> Finding:
    value = f"{cpu.allowed} of {cpu.cores}"
    if cpu.allowed < cpu.ranks:
        why = f"{cpu.ranks} ranks take turns on them"
        return error("cores allowed", value, why, "start fewer ranks, or widen the affinity mask (taskset -p, cpuset)")
    if cpu.allowed == 1 < cpu.cores:
        why = "lanes and compute take turns on one core (some launchers bind a rank to one)"
        return error("cores allowed", value, why, "bind each rank to several cores (mpirun --bind-to none, taskset)")
    return ok("cores allowed", value)


def _quota(cpu: Cpu) -> Finding:
    assert cpu.quota is not None
    value = f"{cpu.quota:g} cores' worth of time"
    if cpu.threads * cpu.ranks <= cpu.quota:
        return ok("cgroup", value)
    why = "more threads than that are stopped together at the end of each period: compute and lanes stand still"
    return warning("cgroup", value, why, f"set OMP_NUM_THREADS={max(1, int(cpu.quota // cpu.ranks) - 1)}")


def _compute(cpu: Cpu, *, on_cpu: bool) -> Finding:
    value = f"{cpu.threads} per rank, {cpu.ranks} rank(s)"
    if cpu.threads * cpu.ranks < cpu.usable:
        return ok("compute threads", value)
    spare = max(1, int(cpu.usable // cpu.ranks) - 1)
    cure = f"set OMP_NUM_THREADS={spare}"
    if on_cpu:
        why = "compute takes every core, and on CPU communication is work for a core, too: lanes can hide little of it"
        if spare * cpu.ranks >= cpu.usable:
            cure = "start fewer ranks on this host"
        return warning("compute threads", value, why, cure)
    why = "host work of the optimizer's or the loader's may delay launches"
    return note("compute threads", value, why, cure)
