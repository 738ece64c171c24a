"""Lanes and events: what the executor needs of a backend. A CUDA stream, a CPU thread and the caller's thread all fit.

Three rules hold for every implementation (``tests/schedule/lane_contract.py`` runs them all through one suite):

1. Jobs of one lane run in the order they were submitted.
2. A job starts after every event it waits for, and its own event is true only after the job has finished.
3. Waiting never blocks more than it must: a device lane waits on the device, a host lane in its own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from overlap.comm.label import Label, reset_label, set_label
from overlap.errors import StateError, message


class Event(Protocol):
    """A fact that becomes true once, named by what has finished."""

    name: str

    def done(self) -> bool:
        """Whether it is true by now; never blocks."""


@dataclass(frozen=True, slots=True)
class Job:
    """Work for one lane.

    Attributes:
        event: name of the event that its end makes true.
        kind: span kind in the timeline.
        unit: unit or bucket name in the timeline.
        bytes: wire bytes of communication, else memory bytes.
        run: the work; None when only the event matters.
        scope: an NVTX range around the work; None where nobody marks it.
    """

    event: str
    kind: str
    unit: str = ""
    bytes: int = 0
    run: Callable[[], None] | None = None
    scope: AbstractContextManager[Any] | None = None

    @property
    def label(self) -> str:
        """For messages: ``gather blocks.3``."""
        return f"{self.kind} {self.unit}".strip()


def run_marked(job: Job) -> None:
    """Do the work of a job that has some, in its range."""
    assert job.run is not None
    if job.scope is None:
        job.run()
        return
    with job.scope:
        job.run()


def run_for_unit(job: Job) -> None:
    """As ``run_marked``, in lanes that communicate: the job's collectives are for its unit or bucket."""
    token = set_label(_purpose(job.unit, job.event))
    try:
        run_marked(job)
    finally:
        reset_label(token)


@lru_cache(maxsize=2**16)
def _purpose(unit: str, event: str) -> Label:
    """In words, for errors and for the matching of calls.

    The ranks match calls by event, too, since a unit may have several buckets. Events are counted within a pass, so
    that a second gather is ``gathered:3#2`` where the plan is followed and ``gathered:3`` where it was not.
    """
    purpose = f"'{unit or '(root)'}' ({event.partition('#')[0]})"
    return Label(purpose, purpose)


class Watch(Protocol):
    """Receives what a lane did; marks are backend time stamps that ``Clock.nanoseconds`` resolves."""

    def span(self, lane: str, job: Job, start: Any, end: Any) -> None:
        """One job ran from ``start`` to ``end``."""


class Clock(Protocol):
    """Time stamps taken in lane order."""

    def mark(self) -> Any:
        """Stamp the current point of the compute lane."""

    def nanoseconds(self, mark: Any) -> int:
        """Host monotonic nanoseconds of a mark; may wait for the device, so never called inside a step."""


class Lane(Protocol):
    """An ordered queue of work."""

    name: str

    def submit(self, job: Job, waits: Sequence[Event]) -> Event:
        """Queue ``job`` behind everything submitted before and behind ``waits``."""

    def close(self) -> None:
        """Finish what is queued and release the lane; submitting afterwards is an error."""


class ComputeLane(Lane, Protocol):
    """The caller's own order of work: module code runs here, between the calls."""

    @property
    def clock(self) -> Clock:
        """Stamps the compute lane."""

    def wait(self, event: Event, label: str) -> bool:
        """Hold compute until ``event``; True if it may really have waited. Raises what failed the event."""

    def enter(self) -> None:
        """Module code is about to run: everything submitted to this lane comes before it."""


class DoneEvent:
    """An event that is true from the start."""

    name = "done"

    def done(self) -> bool:
        """Always true."""
        return True


DONE = DoneEvent()


def refuse_closed(name: str) -> None:
    """What every lane does with a job after it was closed.

    Raises:
        StateError: always.
    """
    raise StateError(message(f"lane {name}", "be open", "a closed lane", "shard the model again"))
