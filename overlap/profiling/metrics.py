"""How much communication is hidden: the totals of one window of one rank. Formulas: docs/metrics.md.

gather   |--AG0--|--AG1--|
compute          |---F0---|stall|---F1---|
         exposed  hidden    idle  compute       span = compute + exposed + idle
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from overlap.profiling.intervals import Interval, intersect, length, subtract, union
from overlap.profiling.ratio import overlap_ratio, why_no_ratio
from overlap.profiling.timeline import Span
from overlap.profiling.unit_metrics import UnitMetrics, measure_units
from overlap.profiling.window import window_of

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Totals of a window, ns. Of one window: span = compute + exposed + idle, comm = hidden + exposed."""

    span_ns: int
    """From the first start to the last end."""
    compute_ns: int
    """Compute worked: every span of the compute lane except stalls."""
    comm_ns: int
    """At least one collective was on the wire; lanes that overlap count once."""
    hidden_ns: int
    """Communication under working compute."""
    exposed_ns: int
    """Communication while compute did nothing."""
    idle_ns: int
    """Neither compute nor communication: launch gaps, data loading, host and disk traffic."""
    stall_ns: int
    """Compute waited for an event: exposed communication, and waits for host, disk or slots."""
    comm_ops: int
    """Number of collectives."""
    units: tuple[UnitMetrics, ...]
    """Who paid, in order of first appearance."""

    @property
    def ratio(self) -> float | None:
        """Overlap ratio: hidden / comm; None without communication."""
        return overlap_ratio(self.hidden_ns, self.comm_ns)

    @property
    def no_comm_reason(self) -> str | None:
        """Why there is no ratio; None where there is one."""
        return why_no_ratio(self.comm_ns, self.comm_ops)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, times in ms."""
        return {
            "ratio": self.ratio,
            "exposed_ms": self.exposed_ns / _NS_PER_MS,
            "comm_ms": self.comm_ns / _NS_PER_MS,
            "hidden_ms": self.hidden_ns / _NS_PER_MS,
            "compute_ms": self.compute_ns / _NS_PER_MS,
            "idle_ms": self.idle_ns / _NS_PER_MS,
            "stall_ms": self.stall_ns / _NS_PER_MS,
            "span_ms": self.span_ns / _NS_PER_MS,
            "no_comm_reason": self.no_comm_reason,
            "per_unit": [unit.to_dict() for unit in self.units],
        }


def measure(spans: Iterable[Span]) -> StepMetrics:
    """Measure one window: the spans of one rank, over one step or several.

    A window of several steps sees communication of one step that hides under compute of the next.
    """
    ordered = window_of(spans)
    busy = _covered(span for span in ordered if span.busy)
    comm = _covered(span for span in ordered if span.communicates)
    window = [(ordered[0].start_ns, max(span.end_ns for span in ordered))]
    metrics = StepMetrics(
        span_ns=length(window),
        compute_ns=length(busy),
        comm_ns=length(comm),
        hidden_ns=length(intersect(comm, busy)),
        exposed_ns=length(subtract(comm, busy)),
        idle_ns=length(subtract(window, union(busy + comm))),
        stall_ns=length(_covered(span for span in ordered if span.stalled)),
        comm_ops=sum(span.communicates for span in ordered),
        units=measure_units(ordered, busy),
    )
    assert metrics.compute_ns + metrics.exposed_ns + metrics.idle_ns == metrics.span_ns
    assert metrics.hidden_ns + metrics.exposed_ns == metrics.comm_ns
    return metrics


def _covered(spans: Iterable[Span]) -> list[Interval]:
    return union((span.start_ns, span.end_ns) for span in spans)
