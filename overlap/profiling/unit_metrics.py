"""Who paid for the communication: wire time, hidden and exposed part, bytes and stalls of each unit.

gather   |--- AG1 ---|              wire 12 = hidden 6 + exposed 6, in the pass of the compute it serves
compute  |  F0 |stall| F1 |         the stall says which unit compute waited for
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from overlap.profiling.intervals import Interval, intersect, length, union
from overlap.profiling.timeline import Span

_NS_PER_MS = 1e6
_PASS_OF_COMPUTE = {
    "forward": "forward gather",
    "backward": "backward gather",
    "recompute": "backward gather",
}


@dataclass(frozen=True, slots=True)
class PassMetrics:
    """One unit's communication in one pass."""

    name: str
    """forward gather, backward gather, reduce or replicate; gather where no compute of the unit followed."""
    bytes: int
    """Bytes this rank put on the wire."""
    wire_ns: int
    """Time in which at least one collective of the pass ran."""
    hidden_ns: int
    """The part of ``wire_ns`` under busy compute."""
    exposed_ns: int
    """The other part."""

    def to_dict(self) -> dict[str, Any]:
        """Times in ms."""
        return {
            "pass": self.name,
            "bytes": self.bytes,
            "wire_ms": self.wire_ns / _NS_PER_MS,
            "hidden_ms": self.hidden_ns / _NS_PER_MS,
            "exposed_ms": self.exposed_ns / _NS_PER_MS,
        }


@dataclass(frozen=True, slots=True)
class UnitMetrics:
    """One unit's communication over all passes. Overlapping lanes of one unit count once."""

    unit: str
    """FQN, "" for the whole model."""
    bytes: int
    """Bytes this rank put on the wire."""
    wire_ns: int
    """Time in which at least one collective of the unit ran."""
    hidden_ns: int
    """The part of ``wire_ns`` under busy compute."""
    exposed_ns: int
    """The other part."""
    stall_ns: int
    """Time in which compute stood still, waiting for this unit."""
    passes: tuple[PassMetrics, ...]
    """The same, split; order of first appearance."""

    def to_dict(self) -> dict[str, Any]:
        """Times in ms."""
        return {
            "unit": self.unit,
            "bytes": self.bytes,
            "wire_ms": self.wire_ns / _NS_PER_MS,
            "hidden_ms": self.hidden_ns / _NS_PER_MS,
            "exposed_ms": self.exposed_ns / _NS_PER_MS,
            "stall_ms": self.stall_ns / _NS_PER_MS,
            "passes": [one.to_dict() for one in self.passes],
        }


def measure_units(spans: Sequence[Span], busy: Sequence[Interval]) -> tuple[UnitMetrics, ...]:
    """One row per unit that communicated or was waited for, in order of first appearance.

    Args:
        spans: of one rank, in order of start.
        busy: merged intervals in which compute worked.
    """
    pass_of = _pass_finder(spans)
    involved = [span for span in spans if span.communicates or span.stalled]
    rows = []
    for unit, own in _grouped(involved, lambda span: span.unit).items():
        comm = [span for span in own if span.communicates]
        by_pass = _grouped(comm, pass_of)
        passes = tuple(PassMetrics(name, *_wire(part, busy)) for name, part in by_pass.items())
        stall_ns = length(union((span.start_ns, span.end_ns) for span in own if span.stalled))
        rows.append(UnitMetrics(unit, *_wire(comm, busy), stall_ns, passes))
    return tuple(rows)


def _wire(comm: Sequence[Span], busy: Sequence[Interval]) -> tuple[int, int, int, int]:
    """Bytes, wire, hidden and exposed time of some collectives."""
    wire = union((span.start_ns, span.end_ns) for span in comm)
    hidden_ns = length(intersect(wire, busy))
    return sum(span.bytes for span in comm), length(wire), hidden_ns, length(wire) - hidden_ns


def _pass_finder(spans: Iterable[Span]) -> Callable[[Span], str]:
    """A gather belongs to the pass of the unit's next compute: a unit does not run while it is gathered."""
    computes = [span for span in spans if span.busy and span.kind in _PASS_OF_COMPUTE]
    by_unit = _grouped(computes, lambda span: span.unit)
    starts = {unit: [span.start_ns for span in own] for unit, own in by_unit.items()}

    def pass_of(span: Span) -> str:
        if span.lane != "gather" or span.unit not in starts:
            return span.lane
        next_compute = bisect_left(starts[span.unit], span.start_ns)
        own = by_unit[span.unit]
        return _PASS_OF_COMPUTE[own[next_compute].kind] if next_compute < len(own) else span.lane

    return pass_of


_Key = TypeVar("_Key", bound=Hashable)


def _grouped(spans: Iterable[Span], key: Callable[[Span], _Key]) -> dict[_Key, list[Span]]:
    groups: dict[_Key, list[Span]] = defaultdict(list)
    for span in spans:
        groups[key(span)].append(span)
    return groups
