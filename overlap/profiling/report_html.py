"""A report as one page that works from a file: data, styles and scripts inside; its own policy forbids the network."""

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, cast, get_args

from overlap.comm.volume import Collective, busbw
from overlap.profiling.analysis import Analysis, RankAnalysis
from overlap.profiling.bars import Bar, lanes_of
from overlap.profiling.rank_report import NO_UNIT
from overlap.profiling.reasons import CURES
from overlap.profiling.recording import CATEGORIES, COMMUNICATION
from overlap.profiling.report_sheets import sheets

_PIECES = ("page.css", "timeline.js", "buckets.js", "charts.js")
_REASONS = tuple(CURES)
_KNOWN = get_args(Collective)


def page(analysis: Analysis, buckets: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page, ready to be written to a file; with curves of bucket sizes (``bucket_curves``) where there are some."""
    folder = files("overlap.profiling") / "page"
    text = (folder / "page.html").read_text(encoding="utf-8")
    for name in _PIECES:
        text = text.replace(f"/*{name}*/", (folder / name).read_text(encoding="utf-8"))
    # A name that ends the script element would end it for the browser, too.
    data = json.dumps({**page_data(analysis), "buckets": buckets}, separators=(",", ":")).replace("</", "<\\/")
    return text.replace("/*data*/", data)


def page_data(analysis: Analysis) -> dict[str, Any]:
    """What the scripts draw; times in µs since the start of each rank's window."""
    names = _Names()
    ranks = [_rank(rank, names) for rank in analysis.ranks]
    options = analysis.report.options
    return {
        "source": analysis.report.source,
        "options": f"window {options.window}, rounding {options.rounding}, memset {options.memset}",
        "worst": analysis.ranks.index(analysis.worst),
        "ranks": ranks,
        "reasons": _REASONS,
        "categories": CATEGORIES,
        "sheets": [
            {
                "title": one.title,
                "left": one.left,
                "heads": one.heads,
                "rows": one.rows,
                "texts": one.texts,
                "note": one.note,
            }
            for one in sheets(analysis)
        ],
        "notes": analysis.notes,
        "names": names.listed,
    }


class _Names:
    """Each name once: a trace has few of them and many events."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def listed(self) -> list[str]:
        return list(self._numbers)


def _rank(rank: RankAnalysis, names: _Names) -> dict[str, Any]:
    totals, origin = rank.report.totals, rank.report.cover.window[0]
    return {
        "rank": rank.report.rank,
        "span": totals.span_ns / 1000,
        "parts": {
            "compute": totals.compute_ns / 1000,
            "exposed": totals.exposed_comm_ns / 1000,
            "copy": totals.exposed_copy_ns / 1000,
            "idle": totals.idle_ns / 1000,
        },
        "ratio": totals.ratio,
        "no_comm_reason": totals.no_comm_reason,
        "lanes": [
            {"name": name, "bars": [_bar(bar, origin, names) for bar in bars]}
            for name, bars in lanes_of(rank.report.activities)
        ],
        "exposed": [
            [
                *_times(piece.start_ns, piece.end_ns, origin),
                _REASONS.index(piece.reason),
                names(piece.collective.name),
                piece.gain_ns / 1000,
            ]
            for piece in sorted(rank.pieces, key=lambda piece: piece.start_ns)
        ],
        "units": [
            {
                "unit": row.unit or NO_UNIT,
                "comm": row.comm_ns / 1000,
                "exposed": row.exposed_comm_ns / 1000,
                "compute": row.compute_ns / 1000,
            }
            for row in rank.report.units
        ],
        "steps": _steps(rank, origin),
        "sizes": list(_sizes(rank)),
    }


def _bar(bar: Bar, origin: int, names: _Names) -> list[float]:
    times = _times(bar.start_ns, bar.end_ns, origin)
    return [*times, names(bar.name), CATEGORIES.index(bar.category), names(bar.unit), names(bar.phase)]


def _times(start_ns: int, end_ns: int, origin: int) -> tuple[float, float]:
    return (start_ns - origin) / 1000, (end_ns - start_ns) / 1000


def _steps(rank: RankAnalysis, origin: int) -> Sequence[tuple[str, float, float]]:
    """From the first start to the last end of what each step launched; the whole window where no step is marked."""
    steps = []
    for step in rank.report.recording.steps:
        own = [
            one
            for one in rank.report.activities
            if step.start_ns <= (one.start_ns if one.launched_ns is None else one.launched_ns) < step.end_ns
        ]
        if own:
            first, last = min(one.start_ns for one in own), max(one.end_ns for one in own)
            steps.append((step.name, (first - origin) / 1000, (last - origin) / 1000))
    return steps or [("the whole window", 0.0, rank.report.totals.span_ns / 1000)]


def _sizes(rank: RankAnalysis) -> Iterable[dict[str, Any]]:
    for one in rank.report.activities:
        sent, took = one.message, one.end_ns - one.start_ns
        if one.category == COMMUNICATION and sent.bytes and sent.world and took and sent.collective in _KNOWN:
            speed = busbw(cast("Collective", sent.collective), sent.bytes, took / 1e9, sent.world) / 1e9
            yield {"kind": sent.collective, "bytes": sent.bytes, "busbw": speed}
