"""Interleaved timing: contenders take turns, so that a machine that drifts drifts for all of them.

    round 0 (not counted)   A B C
    round 1                 A B C
    round 2                 A B C   ...

What is reported is a median over rounds, and ratios of medians of the same rounds.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Run = Callable[[], object]

MIN_ROUNDS = 5
"""Counted rounds that are made even where the time budget is spent."""

SETTLE_S = 0.01
"""Rest before each timed call on CPU: OpenMP workers of the one before spin for some milliseconds."""


class Clock(Protocol):
    """Times one call on one kind of device."""

    def seconds(self, run: Run) -> float:
        """Run once and return its duration."""
        ...


class CpuClock:
    """Wall clock around the call."""

    def seconds(self, run: Run) -> float:
        """Run once and return its duration."""
        time.sleep(SETTLE_S)
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin


class CudaClock:
    """CUDA events around the call's work on the current stream.

    Before each call some fills are queued. They empty the caches, and they keep the device busy while the host
    issues the call, so that the events hold the device's time and not the host's.
    """

    FILLS, SCRATCH = 16, 256 << 20
    """About a millisecond of fills, over more bytes than any cache holds."""

    def __init__(self, device: torch.device) -> None:
        self._scratch = torch.empty(self.SCRATCH, dtype=torch.uint8, device=device)
        self._begin, self._end = _event(), _event()

    def seconds(self, run: Run) -> float:
        """Run once and return its duration on the device."""
        for _ in range(self.FILLS):
            self._scratch.zero_()
        self._begin.record()
        run()
        self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_of(device: torch.device) -> Clock:
    """Return the clock for calls that work on ``device``."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def interleave(runs: Sequence[Run], clock: Clock, *, rounds: int, budget_s: float) -> list[list[float]]:
    """Let all runs take turns and return the seconds of each, by run and counted round.

    Args:
        runs: in the order of every round. One round more, the first, warms up and is not counted.
        clock: times one call.
        rounds: how many are counted.
        budget_s: no further round begins after so many seconds, once ``MIN_ROUNDS`` (or all) are counted.
    """
    end = time.perf_counter() + budget_s
    for run in runs:
        clock.seconds(run)
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        if number >= MIN_ROUNDS and time.perf_counter() > end:
            break
        for run, times in zip(runs, seconds, strict=True):
            times.append(clock.seconds(run))
    return seconds
