"""One rank, measured: totals and who paid for them. What ``overlap report --json`` writes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overlap.profiling.breakdown import Breakdown, Cover, break_down, cover
from overlap.profiling.classify import classifier
from overlap.profiling.intervals import intersect, length, union
from overlap.profiling.recording import COMMUNICATION, COMPUTE, Activity, Recording
from overlap.profiling.selection import ReportOptions, select
from overlap.profiling.sources import read_recordings

NO_UNIT = "(no unit)"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """What one unit computed and communicated, ns."""

    unit: str
    """Module, unit or range; "" where the recording does not say."""
    compute_ns: int
    """Its own kernels ran."""
    comm_ns: int
    """Its own collectives ran."""
    hidden_comm_ns: int
    """The part of them under compute of any unit."""
    exposed_comm_ns: int
    """The other part."""
    comm_ops: int
    """Number of its collectives."""

    def to_dict(self) -> dict[str, Any]:
        """Times in µs."""
        return {
            "unit": self.unit or NO_UNIT,
            "compute_us": self.compute_ns / 1000,
            "comm_us": self.comm_ns / 1000,
            "exposed_comm_us": self.exposed_comm_ns / 1000,
            "comm_ops": self.comm_ops,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank did in its window."""

    recording: Recording
    """Where it comes from."""
    activities: tuple[Activity, ...]
    """What was measured, each with the category it counted as."""
    cover: Cover
    """The same as merged intervals."""
    totals: Breakdown
    units: tuple[UnitRow, ...]
    """In order of first appearance."""

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.recording.rank

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, times in µs."""
        totals = self.totals
        return {
            "rank": self.rank,
            "span_us": totals.span_ns / 1000,
            "compute_us": totals.compute_ns / 1000,
            "comm_us": totals.comm_ns / 1000,
            "exposed_comm_us": totals.exposed_comm_ns / 1000,
            "exposed_copy_us": totals.exposed_copy_ns / 1000,
            "idle_us": totals.idle_ns / 1000,
            "overlap_ratio": totals.ratio,
            "no_comm_reason": totals.no_comm_reason,
            "per_unit": [row.to_dict() for row in self.units],
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """All ranks of one source."""

    source: str
    options: ReportOptions
    ranks: tuple[RankReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, times in µs."""
        ranks = [rank.to_dict() for rank in self.ranks]
        return {"source": self.source, "options": self.options.to_dict(), "ranks": ranks}


def report(path: str, options: ReportOptions | None = None) -> Report:
    """Read what lies at ``path`` and measure every rank of it."""
    options = options or ReportOptions()
    recordings = read_recordings(path, classifier(options.comm_kernels))
    return Report(source=path, options=options, ranks=tuple(measure_rank(one, options) for one in recordings))


def measure_rank(recording: Recording, options: ReportOptions) -> RankReport:
    """Measure one recording under the options."""
    activities = select(recording, options)
    totals, found = break_down(activities), cover(activities)
    return RankReport(
        recording=recording, activities=activities, cover=found, totals=totals, units=_units(activities, found)
    )


def _units(activities: Sequence[Activity], found: Cover) -> tuple[UnitRow, ...]:
    by_unit: dict[str, list[Activity]] = defaultdict(list)
    for one in activities:
        if one.category in (COMPUTE, COMMUNICATION):
            by_unit[one.unit].append(one)
    return tuple(_unit(unit, own, found) for unit, own in by_unit.items())


def _unit(unit: str, own: Sequence[Activity], found: Cover) -> UnitRow:
    spans = {
        category: union((one.start_ns, one.end_ns) for one in own if one.category == category)
        for category in (COMPUTE, COMMUNICATION)
    }
    comm_ns = length(spans[COMMUNICATION])
    hidden_ns = length(intersect(spans[COMMUNICATION], found.compute))
    return UnitRow(
        unit=unit,
        compute_ns=length(spans[COMPUTE]),
        comm_ns=comm_ns,
        hidden_comm_ns=hidden_ns,
        exposed_comm_ns=comm_ns - hidden_ns,
        comm_ops=sum(one.category == COMMUNICATION for one in own),
    )
