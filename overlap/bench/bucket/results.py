"""What a sweep measured, as data. Every figure is defined in docs/collective.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from overlap.profiling.intervals import Interval, length, subtract, union


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step on one rank, in seconds."""

    wall_s: float
    compute_s: float
    """In compute's own jobs."""
    wire_s: float
    """In collectives."""
    exposed_s: float
    """In collectives, while compute neither computed nor packed."""
    call_s: tuple[float, ...]
    """Of every collective."""

    @classmethod
    def of(cls, wall_s: float, spans: dict[str, list[Interval]]) -> Self:
        """Work out a step from what ran."""
        wire = union(spans["reduce"])
        busy = union([*spans["compute"], *spans["pack"]])
        return cls(
            wall_s=wall_s,
            compute_s=length(union(spans["compute"])) / 1e9,
            wire_s=length(wire) / 1e9,
            exposed_s=length(subtract(wire, busy)) / 1e9,
            call_s=tuple((end - start) / 1e9 for start, end in spans["reduce"]),
        )


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One size and number of buckets; medians over rounds of means over ranks."""

    bucket_bytes: int
    in_flight: int
    buckets: int
    """In a step."""
    call_us: float
    """A collective without compute beside it."""
    busbw_alone_gbps: float
    """Of the bytes of a step over its wall time, without compute."""
    busbw_beside_gbps: float
    """Of the bytes of a step over the time in collectives, beside compute."""
    alone_ms: float
    """A step without compute."""
    compute_ms: float
    """Compute of a step, without collectives."""
    step_ms: float
    """A step with both."""
    exposed_ms: float
    """Of it, in collectives while compute did nothing."""
    slowdown: float
    """Time of compute beside collectives over that without."""


@dataclass(frozen=True)
class Sweep:
    """All rows so far."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: tuple[SweepRow, ...] = ()

    @property
    def fastest(self) -> SweepRow:
        """The row of the shortest step."""
        return min(self.rows, key=lambda row: row.step_ms)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` writes."""
        return {"machine": self.machine, "settings": self.settings, "rows": [asdict(row) for row in self.rows]}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        """Rebuild what ``to_dict`` gave."""
        return cls(given["machine"], given["settings"], tuple(SweepRow(**row) for row in given["rows"]))
