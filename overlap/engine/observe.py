"""From what lanes report to a timeline."""

from __future__ import annotations

from collections import deque
from typing import Any

from overlap.profiling.timeline import Span, Timeline
from overlap.schedule.lanes import Clock, Job


class TimelineWatch:
    """Collects spans; on CUDA their marks are events, resolved when somebody looks, never inside a step."""

    def __init__(self, rank: int, keep_steps: int = 64) -> None:
        self.step = 0
        self._keep = keep_steps
        self.clock: Clock | None = None
        self._rank = rank
        self._timeline = Timeline(keep_steps)
        # Names, not jobs: what a job runs holds the model, and lanes hold the watch.
        self._pending: deque[tuple[str, str, str, int, Any, Any, int]] = deque()

    def next_step(self) -> None:
        """A pass begins; what nobody has looked at for ``keep_steps`` passes is dropped."""
        self.step += 1
        while self._pending and self._pending[0][-1] <= self.step - self._keep:
            self._pending.popleft()

    def span(self, lane: str, job: Job, start: Any, end: Any) -> None:
        """Note one span; appending is atomic, so any lane thread may call."""
        self._pending.append((str(lane), job.kind, job.unit, job.bytes, start, end, self.step))

    def timeline(self) -> Timeline:
        """Everything so far, with host times; waits for the device to finish what is pending."""
        clock = self.clock
        assert clock is not None
        for _ in range(len(self._pending)):  # lanes may go on appending
            lane, kind, unit, nbytes, start, end, step = self._pending.popleft()
            begin_ns, end_ns = clock.nanoseconds(start), clock.nanoseconds(end)
            span = Span(lane, kind, unit, nbytes, begin_ns, max(begin_ns, end_ns), step, self._rank)
            self._timeline.add(span)
        return self._timeline
