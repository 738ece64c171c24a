"""Where the time of a window went, for any source. Formulas: docs/metrics.md.

compute   ...xxxxx...xxx....        each moment counts once, for the first of the three that was going on:
wire      xxxxxx.....xxxxx..        compute, else communication, else a copy; what is left is idle
copy      ........xx......x.
          EEECCCCC.PPCCCEEP.        span = compute + exposed communication + exposed copies + idle
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overlap.errors import StateError, message
from overlap.profiling.intervals import Interval, intersect, length, subtract, union
from overlap.profiling.ratio import overlap_ratio, why_no_ratio
from overlap.profiling.recording import COMMUNICATION, COMPUTE, COPY, Activity, Category


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Totals of one window of one rank, ns."""

    span_ns: int
    """From the first start to the last end."""
    compute_ns: int
    """At least one kernel computed."""
    comm_ns: int
    """At least one collective ran; those that overlap count once."""
    copy_ns: int
    """At least one copy ran."""
    hidden_comm_ns: int
    """Communication under compute."""
    exposed_comm_ns: int
    """Communication without compute."""
    exposed_copy_ns: int
    """Copies with neither compute nor communication."""
    idle_ns: int
    """Nothing ran."""
    comm_ops: int
    """Number of collectives."""

    @property
    def ratio(self) -> float | None:
        """Overlap ratio: hidden communication over all of it; None without communication."""
        return overlap_ratio(self.hidden_comm_ns, self.comm_ns)

    @property
    def no_comm_reason(self) -> str | None:
        """Why there is no ratio; None where there is one."""
        return why_no_ratio(self.comm_ns, self.comm_ops)


@dataclass(frozen=True, slots=True)
class Cover:
    """What a window is covered by, as merged intervals: the one place that decides what counts as what."""

    window: Interval
    compute: list[Interval]
    comm: list[Interval]
    copy: list[Interval]

    @property
    def exposed_comm(self) -> list[Interval]:
        """Communication without compute."""
        return subtract(self.comm, self.compute)

    @property
    def exposed_copy(self) -> list[Interval]:
        """Copies with neither compute nor communication."""
        return subtract(self.copy, self.working)

    @property
    def working(self) -> list[Interval]:
        """Compute or communication."""
        return union([*self.compute, *self.comm])


def cover(activities: Sequence[Activity]) -> Cover:
    """The cover of one window; refuses an empty one."""
    if not activities:
        cure = "record at least one step, and check --window"
        raise StateError(message("window", "hold at least one activity", "none", cure))
    window = min(one.start_ns for one in activities), max(one.end_ns for one in activities)
    return Cover(window, *(covered(activities, category) for category in (COMPUTE, COMMUNICATION, COPY)))


def covered(activities: Iterable[Activity], category: Category) -> list[Interval]:
    """When at least one activity of a category ran."""
    return union((one.start_ns, one.end_ns) for one in activities if one.category == category)


def break_down(activities: Sequence[Activity]) -> Breakdown:
    """Measure one window; memsets must have become compute or copies before (``selection.select``)."""
    found = cover(activities)
    start, end = found.window
    totals = Breakdown(
        span_ns=end - start,
        compute_ns=length(found.compute),
        comm_ns=length(found.comm),
        copy_ns=length(found.copy),
        hidden_comm_ns=length(intersect(found.comm, found.compute)),
        exposed_comm_ns=length(found.exposed_comm),
        exposed_copy_ns=length(found.exposed_copy),
        idle_ns=length(subtract([found.window], union([*found.working, *found.copy]))) if start < end else 0,
        comm_ops=sum(one.category == COMMUNICATION for one in activities),
    )
    parts = totals.compute_ns + totals.exposed_comm_ns + totals.exposed_copy_ns + totals.idle_ns
    assert parts == totals.span_ns
    assert totals.hidden_comm_ns + totals.exposed_comm_ns == totals.comm_ns
    return totals
