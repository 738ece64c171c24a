"""Time of calls: the wall clock on CPU, events on the current stream on CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Stopwatch(Protocol):
    """Times calls one by one; they are read at the end, so that CUDA is not waited for in between."""

    def time(self, call: Callable[[], None]) -> None:
        """Make a call."""

    def seconds(self) -> list[float]:
        """What each took."""


class HostStopwatch:
    """For calls that are complete when they return."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def time(self, call: Callable[[], None]) -> None:
        """See `Stopwatch`."""
        begin = time.perf_counter()
        call()
        self._seconds.append(time.perf_counter() - begin)

    def seconds(self) -> list[float]:
        """See `Stopwatch`."""
        return self._seconds


class CudaStopwatch:
    """For calls that enqueue.

    Args:
        cuda: ``torch.cuda``, or what stands in for it.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._events: list[tuple[Any, Any]] = []

    def time(self, call: Callable[[], None]) -> None:
        """See `Stopwatch`."""
        begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(self._cuda.current_stream())
        call()
        end.record(self._cuda.current_stream())
        self._events.append((begin, end))

    def seconds(self) -> list[float]:
        """See `Stopwatch`; waits for the last call."""
        if self._events:
            self._events[-1][1].synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in self._events]


def stopwatch_for(device: torch.device) -> Stopwatch:
    """The one for calls on a device."""
    return CudaStopwatch(torch.cuda) if device.type == "cuda" else HostStopwatch()
