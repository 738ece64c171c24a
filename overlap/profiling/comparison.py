"""Two runs side by side: what changed, in total and by unit. Figures are means over ranks."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from overlap.profiling.breakdown import Breakdown
from overlap.profiling.rank_report import NO_UNIT, Report
from overlap.profiling.ratio import overlap_ratio
from overlap.profiling.sheet import Sheet

_SHOWN = 15
_PARTS: Sequence[tuple[str, Callable[[Breakdown], int]]] = (
    ("span", lambda totals: totals.span_ns),
    ("compute", lambda totals: totals.compute_ns),
    ("communication", lambda totals: totals.comm_ns),
    ("exposed communication", lambda totals: totals.exposed_comm_ns),
    ("exposed copies", lambda totals: totals.exposed_copy_ns),
    ("idle", lambda totals: totals.idle_ns),
)


def comparison_sheets(before: Report, after: Report) -> list[Sheet]:
    """Totals, and the units whose exposed communication changed most."""
    return [_totals(before, after), _units(before, after)]


def comparison_dict(before: Report, after: Report) -> dict[str, Any]:
    """JSON-ready: both reports, and after minus before, means over ranks in µs."""
    change = {
        name.replace(" ", "_") + "_us": (_mean(after, part) - _mean(before, part)) / 1000 for name, part in _PARTS
    }
    ratios = _ratio(before), _ratio(after)
    change_of_ratio = None if None in ratios else ratios[1] - ratios[0]  # type: ignore[operator]
    return {
        "before": before.to_dict(),
        "after": after.to_dict(),
        "change": {**change, "overlap_ratio": change_of_ratio},
    }


def _totals(before: Report, after: Report) -> Sheet:
    rows = []
    for name, part in _PARTS:
        old, new = _mean(before, part), _mean(after, part)
        rows.append([name, _ms(old), _ms(new), f"{(new - old) / 1e6:+.2f}", _percent(old, new)])
    old_ratio, new_ratio = _ratio(before), _ratio(after)
    change = "" if old_ratio is None or new_ratio is None else f"{new_ratio - old_ratio:+.3f}"
    rows.append(["overlap ratio", _figure(old_ratio), _figure(new_ratio), change, ""])
    title = f"A {before.source} against B {after.source}, ms, mean over ranks"
    note = ""
    if len(before.ranks) != len(after.ranks):
        note = f"A has {len(before.ranks)} ranks, B {len(after.ranks)}"
    return Sheet(title=title, left="", heads=["A", "B", "change", "%"], rows=rows, note=note)


def _units(before: Report, after: Report) -> Sheet:
    old, new = _exposed(before), _exposed(after)
    changes = {unit: new.get(unit, 0.0) - old.get(unit, 0.0) for unit in {**old, **new}}
    most = sorted(changes, key=lambda unit: -abs(changes[unit]))[:_SHOWN]
    rows = [
        [unit or NO_UNIT, _ms(old.get(unit, 0.0)), _ms(new.get(unit, 0.0)), f"{changes[unit] / 1e6:+.2f}"]
        for unit in most
        if changes[unit]
    ]
    return Sheet(title="exposed communication per unit, ms", left="unit", heads=["A", "B", "change"], rows=rows)


def _exposed(report: Report) -> dict[str, float]:
    """Unit -> exposed communication, mean over ranks, ns."""
    sums: dict[str, float] = {}
    for rank in report.ranks:
        for row in rank.units:
            sums[row.unit] = sums.get(row.unit, 0.0) + row.exposed_comm_ns / len(report.ranks)
    return sums


def _mean(report: Report, part: Callable[[Breakdown], int]) -> float:
    return fmean(part(rank.totals) for rank in report.ranks)


def _ratio(report: Report) -> float | None:
    """Hidden over all communication of all ranks together."""
    totals = [rank.totals for rank in report.ranks]
    return overlap_ratio(sum(each.hidden_comm_ns for each in totals), sum(each.comm_ns for each in totals))


def _percent(old: float, new: float) -> str:
    return f"{100 * (new / old - 1):+.1f}" if old else ""


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f}"
