"""What was measured, as data. Every figure is defined in docs/collective.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, Self

from overlap.comm.volume import Collective, algbw, busbw


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One kind of call: out of place, or in place."""

    time_us: float
    """Median over calls of the mean over ranks."""
    min_us: float
    max_us: float
    algbw_gbps: float
    """1e9 bytes per second."""
    busbw_gbps: float
    wrong: int | None
    """Values over all ranks and checked calls; None where none was checked."""

    @classmethod
    def of(
        cls, op: Collective, nbytes: int, world: int, seconds_by_rank: Sequence[Sequence[float]], wrong: int | None
    ) -> Self:
        """Work out figures from the seconds of every call on every rank."""
        calls = [fmean(call) for call in zip(*seconds_by_rank, strict=True)]
        seconds = median(calls)
        return cls(
            time_us=1e6 * seconds,
            min_us=1e6 * min(calls),
            max_us=1e6 * max(calls),
            algbw_gbps=algbw(nbytes, seconds) / 1e9,
            busbw_gbps=busbw(op, nbytes, seconds, world) / 1e9,
            wrong=wrong,
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One collective of one size over one transport."""

    collective: Collective
    transport: str
    size: int
    """Bytes of the whole tensor."""
    count: int
    """Elements, as nccl-tests counts them."""
    type: str
    redop: str
    """``none`` where nothing is reduced."""
    out_of_place: Figures
    in_place: Figures | None
    """None where result and input cannot share memory."""
    root: int = -1
    """-1 where there is none."""

    @property
    def figures(self) -> tuple[Figures, ...]:
        """Those that there are."""
        return (self.out_of_place,) if self.in_place is None else (self.out_of_place, self.in_place)


@dataclass(frozen=True)
class Report:
    """All rows so far."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: tuple[Row, ...] = ()

    @property
    def wrong(self) -> int:
        """Wrong values, all together."""
        return sum(figures.wrong or 0 for row in self.rows for figures in row.figures)

    @property
    def mean_busbw_gbps(self) -> float | None:
        """Over all rows, both ways: the last line of nccl-tests."""
        speeds = [figures.busbw_gbps for row in self.rows for figures in row.figures]
        return fmean(speeds) if speeds else None

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` writes."""
        return {
            "machine": self.machine,
            "settings": self.settings,
            "wrong": self.wrong,
            "mean_busbw_gbps": self.mean_busbw_gbps,
            "rows": [asdict(row) for row in self.rows],
        }

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        """Rebuild what ``to_dict`` gave."""
        return cls(given["machine"], given["settings"], tuple(map(_row, given["rows"])))


def _row(given: dict[str, Any]) -> Row:
    figures = {name: given[name] and Figures(**given[name]) for name in ("out_of_place", "in_place")}
    return Row(**{**given, **figures})
