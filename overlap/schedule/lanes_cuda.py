"""Lanes on CUDA: a stream each, events between them, no host synchronisation.

    compute stream   ... F0 ──record──▶ forward_done:0          wait gathered:2 ──▶ F2
    gather stream               wait forward_done:0 ──▶ AG2 ──record──▶ gathered:2

Memory is safe without ``record_stream``: slots, shards and buckets live as long as the engine, and gradients are read
by ``pack`` on the compute stream itself, the stream that allocated them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from overlap.schedule.lanes import Event, Job, Watch, refuse_closed, run_for_unit

# CUDA's priorities are negative for high; NCCL kernels must not queue behind a full device of compute blocks.
HIGH_PRIORITY = -1


class CudaEvent:
    """A CUDA event that has been recorded on its lane's stream."""

    __slots__ = ("name", "raw")

    def __init__(self, name: str, raw: Any) -> None:
        self.name, self.raw = name, raw

    def done(self) -> bool:
        """Whether the device has passed it."""
        return bool(self.raw.query())


class CudaClock:
    """Marks are timing events on the current stream; one of them is tied to the host clock at the start."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._base = self.mark()
        self._base.synchronize()
        self._base_ns = time.monotonic_ns()

    def mark(self) -> Any:
        """Record a timing event."""
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream())
        return event

    def nanoseconds(self, mark: Any) -> int:
        """Device time of the mark on the host's time axis; waits for the device to reach it."""
        mark.synchronize()
        return self._base_ns + int(self._base.elapsed_time(mark) * 1e6)


class _Stream:
    """What both lanes share: wait, run inside the stream, record."""

    def __init__(self, cuda: Any, clock: CudaClock, name: str, watch: Watch | None) -> None:
        self.name, self.clock = name, clock
        self._cuda, self._watch = cuda, watch
        self._closed = False

    def _run(self, stream: Any, job: Job, waits: Sequence[Event]) -> CudaEvent:
        if self._closed:
            refuse_closed(self.name)
        for wait in waits:
            if isinstance(wait, CudaEvent):
                stream.wait_event(wait.raw)
        if job.run is not None:
            self._work(job)
        raw = self._cuda.Event()
        raw.record(stream)
        return CudaEvent(job.event, raw)

    def _work(self, job: Job) -> None:
        start = self.clock.mark() if self._watch is not None else None
        run_for_unit(job)
        if self._watch is not None:
            self._watch.span(self.name, job, start, self.clock.mark())

    def close(self) -> None:
        """Streams belong to CUDA's pool; queued work finishes by itself. Take no more."""
        self._closed = True


class CudaLane(_Stream):
    """A dedicated high-priority stream."""

    def __init__(self, name: str, *, cuda: Any, clock: CudaClock, watch: Watch | None = None) -> None:
        super().__init__(cuda, clock, name, watch)
        self._stream = cuda.Stream(priority=HIGH_PRIORITY)

    def submit(self, job: Job, waits: Sequence[Event]) -> CudaEvent:
        """Enqueue on the lane's stream; returns at once."""
        with self._cuda.stream(self._stream):
            return self._run(self._stream, job, waits)


class CudaComputeLane(_Stream):
    """The stream that is current when the engine is called: autograd's and the caller's."""

    def __init__(self, *, cuda: Any, clock: CudaClock, watch: Watch | None = None) -> None:
        super().__init__(cuda, clock, "compute", watch)

    def submit(self, job: Job, waits: Sequence[Event]) -> CudaEvent:
        """Enqueue on the current stream; returns at once."""
        return self._run(self._cuda.current_stream(), job, waits)

    def wait(self, event: Event, label: str) -> bool:
        """Make the current stream wait; the host goes on."""
        if isinstance(event, CudaEvent):
            self._cuda.current_stream().wait_event(event.raw)
        return isinstance(event, CudaEvent)

    def enter(self) -> None:
        """A stream is in order by itself."""
