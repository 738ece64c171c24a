"""Nsight Systems around some steps of one rank: it waits for the marks that ``--capture-range`` names.

nsys      ............|== captures ============================|..........
rank 0    step 3      |start ProfilerStep#0  ProfilerStep#1  stop|  step 6
                             | rank 0         | rank 0                 an export names processes, not ranks
"""

from typing import Any, Protocol

import torch

from overlap._compat import nvtx_domain
from overlap.profiling.nsys_marks import CAPTURE_DOMAIN, CAPTURE_RANGE, STEP, rank_mark
from overlap.record.rank import rank_of_process


class Marks(Protocol):
    """How a process speaks to nsys."""

    def start(self) -> None:
        """The capture begins."""

    def stop(self) -> None:
        """What was launched finishes, and the capture ends."""

    def push(self, name: str) -> None:
        """A range of the calling thread begins."""

    def pop(self) -> None:
        """Its innermost range ends."""

    def mark(self, name: str) -> None:
        """A moment has a name."""


class CudaMarks:
    """``--capture-range=cudaProfilerApi``, and the NVTX that torch brings along."""

    def start(self) -> None:
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]

    def push(self, name: str) -> None:
        torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]

    def pop(self) -> None:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]

    def mark(self, name: str) -> None:
        torch.cuda.nvtx.mark(name)  # type: ignore[no-untyped-call]


class NvtxMarks:
    """``--capture-range=nvtx``: without CUDA torch has neither a profiler to start nor NVTX."""

    def __init__(self) -> None:
        self._default, self._capturing = nvtx_domain(None), nvtx_domain(CAPTURE_DOMAIN)
        self._range: Any = None

    def start(self) -> None:
        self._range = self._capturing.start_range(self._capturing.get_event_attributes(CAPTURE_RANGE))

    def stop(self) -> None:
        self._capturing.end_range(self._range)

    def push(self, name: str) -> None:
        self._default.push_range(self._default.get_event_attributes(name))

    def pop(self) -> None:
        self._default.pop_range()

    def mark(self, name: str) -> None:
        self._default.mark(self._default.get_event_attributes(name))


class NsysRecording:
    """Captures from construction on; steps are NVTX ranges ``ProfilerStep#n``."""

    def __init__(self, marks: Marks) -> None:
        self._marks, self._number = marks, 0
        self._rank = rank_mark(rank_of_process())
        marks.start()
        self._open()

    def step(self) -> None:
        """Mark a step."""
        self._marks.pop()
        self._number += 1
        self._open()

    def stop(self) -> None:
        """End the capture."""
        self._marks.pop()
        self._marks.stop()

    def _open(self) -> None:
        self._marks.push(f"{STEP}{self._number}")
        self._marks.mark(self._rank)  # in each step: another rank may have begun the capture, later than this one did
