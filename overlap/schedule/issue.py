"""Gives ops to lanes: finds the events an op waits for, keeps the one it records, lets compute wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from overlap.schedule.lanes import DONE, ComputeLane, Event, Job, Lane
from overlap.schedule.op import ENTRY_OF_EXIT, EXIT_OF_ENTRY, LaneName, Op
from overlap.schedule.ranges import ComputeRanges
from overlap.schedule.trace import ComputeTrace


class Bindings(Protocol):
    """The engine's side: what an op does, and how a unit or bucket is called."""

    def job(self, op: Op) -> Job:
        """The work of one op."""

    def expects_more(self, bucket: int, *, passed: bool) -> bool:
        """Whether the running backward brings gradients that a bucket lacks, whose place in a plan has ``passed``."""

    def waited_for(self, event: str) -> str:
        """The unit or bucket that an event is about, for messages and stalls."""


class Issuer:
    """Issues ops of one pass after another.

    Attributes:
        issued: events of the ops of this pass, in order.
        latest: true once all compute that has been submitted has finished.
        trace: records compute and stalls; None records nothing.
        ranges: names module code for a profiler; None names nothing.
    """

    def __init__(
        self,
        bindings: Bindings,
        compute: ComputeLane,
        lanes: dict[LaneName, Lane],
        trace: ComputeTrace | None,
        ranges: ComputeRanges | None,
    ) -> None:
        self._bindings, self._compute, self._lanes = bindings, compute, lanes
        self.trace, self.ranges = trace, ranges
        self.issued: list[str] = []
        self.latest: Event = DONE
        self._events: dict[str, Event] = {}
        self._jobs: dict[str, tuple[Op, Job]] = {}  # by event: hashing an op takes Python

    def begin(self) -> None:
        """A pass starts: events of earlier ones are over."""
        self.issued = []
        self._events = {}
        self.close_ranges()

    def close_ranges(self) -> None:
        """What is open belongs to a pass that is over."""
        if self.ranges is not None:
            self.ranges.close()

    def forget_jobs(self) -> None:
        """Memory has moved: what ops do must be asked anew."""
        self._jobs.clear()

    def event(self, name: str) -> Event:
        """The event of that name in this pass; true at once if nothing has been issued for it."""
        return self._events.get(name, DONE)

    def stand_in(self, name: str, event: Event) -> None:
        """Let another event stand for one whose op is not issued in this pass."""
        self._events[name] = event

    def issue(self, op: Op, extra: Iterable[Event] = ()) -> Event:
        """Submit an op behind its waits, and one that communicates behind ``extra`` ones that no plan names."""
        events = self._events
        known = self._jobs.get(op.records)
        job = known[1] if known is not None and known[0] is op else self._job(op)
        self.issued.append(op.records)
        if op.lane is LaneName.COMPUTE:
            event = self._on_compute(op, job)
            if op.kind not in EXIT_OF_ENTRY:
                self.latest = event
        else:
            event = self._submit(op, job, [*[events.get(name, DONE) for name in op.waits], *extra])
        self._events[op.records] = event
        return event

    def wait(self, event: Event, unit: str) -> None:
        """Let compute wait; the stall, if there is one, goes to the trace."""
        if event is DONE:
            return
        start = self.trace.mark() if self.trace is not None else None
        waited = self._compute.wait(event, unit)
        if self.trace is not None and waited:
            self.trace.stall(unit, start)

    def _submit(self, op: Op, job: Job, waits: Sequence[Event]) -> Event:
        if self.trace is None:
            return self._lanes[op.lane].submit(job, waits)
        start = self.trace.mark()
        event = self._lanes[op.lane].submit(job, waits)
        if event is DONE:  # an inline lane: compute stood still while it ran
            self.trace.stall(job.unit, start)
        return event

    def _on_compute(self, op: Op, job: Job) -> Event:
        for name in op.waits:
            event = self._events.get(name, DONE)
            if event is not DONE:
                self.wait(event, self._bindings.waited_for(name))
        if op.kind in EXIT_OF_ENTRY:
            self._compute.enter()
            if self.trace is not None:
                self.trace.enter(op.kind, job.unit)
            if self.ranges is not None:
                self.ranges.enter(op.kind, job.unit)
            return DONE
        if self.ranges is not None and op.kind in ENTRY_OF_EXIT:
            self.ranges.leave(op.kind, job.unit)
        if self.trace is None:
            return self._compute.submit(job, ())
        if op.kind in ENTRY_OF_EXIT:
            self.trace.leave(op.kind, job.unit)
        self.trace.pause()
        event = self._compute.submit(job, ())
        self.trace.resume()
        return event

    def _job(self, op: Op) -> Job:
        """Of an op that is new, or equal to one that is not."""
        known = self._jobs.get(op.records)
        job = known[1] if known is not None and known[0] == op else self._bindings.job(op)
        self._jobs[op.records] = op, job
        return job
