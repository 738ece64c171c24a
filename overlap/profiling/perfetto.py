"""A timeline as a trace for ui.perfetto.dev or chrome://tracing: a process per rank, a track per lane.

rank 0   compute  |F0 |F1 |...
         gather   |AG0|AG1|
rank 1   compute  ...
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from overlap.profiling.timeline import LANES, Span

FORMAT = "overlap-trace-1"
"""How a reader knows a trace of ours, by its first bytes."""

_NS_PER_US = 1e3


def trace(spans: Iterable[Span]) -> dict[str, Any]:
    """The trace as a JSON-ready document; times in µs since the first span, float, exact to the ns.

    Nanoseconds of a clock that has run for weeks do not fit a float: the origin goes to ``otherData``.
    """
    ordered = sorted(spans, key=lambda span: (span.rank, span.start_ns, -span.end_ns))
    origin = min((span.start_ns for span in ordered), default=0)
    tracks = _tracks(ordered)
    events = [*_names(tracks), *_step_marks(ordered, origin)]
    events += [_event(span, tracks[span.rank, span.lane], origin) for span in ordered]
    return {
        "otherData": {"format": FORMAT, "clock": "host monotonic", "origin_ns": str(origin)},
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }


def write_trace(spans: Iterable[Span], path: str | Path) -> None:
    """Write ``trace(spans)`` to ``path``, e.g. the ``timeline.json`` of a run."""
    Path(path).write_text(json.dumps(trace(spans), separators=(",", ":")) + "\n", encoding="utf-8")


def _tracks(ordered: Iterable[Span]) -> dict[tuple[int, str], int]:
    """(rank, lane) -> thread id; known lanes keep one id in every trace, so traces compare side by side."""
    lanes = list(dict.fromkeys([*LANES, *sorted({span.lane for span in ordered})]))
    used = dict.fromkeys((span.rank, span.lane) for span in ordered)
    return {(rank, lane): lanes.index(lane) for rank, lane in used}


def _names(tracks: dict[tuple[int, str], int]) -> Iterable[dict[str, Any]]:
    for rank in dict.fromkeys(rank for rank, _ in tracks):
        yield _metadata("process_name", rank, 0, name=f"rank {rank}")
        yield _metadata("process_sort_index", rank, 0, sort_index=rank)
    for (rank, lane), track in tracks.items():
        yield _metadata("thread_name", rank, track, name=lane)
        yield _metadata("thread_sort_index", rank, track, sort_index=track)


def _metadata(what: str, rank: int, track: int, **args: object) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": args}


def _step_marks(ordered: Iterable[Span], origin: int) -> Iterable[dict[str, Any]]:
    """An instant over all tracks of a rank where a step begins: steps may overlap, so they are no ranges."""
    begins: dict[tuple[int, int], int] = {}
    for span in ordered:
        begins.setdefault((span.rank, span.step), span.start_ns)
    for (rank, step), begin in begins.items():
        at = (begin - origin) / _NS_PER_US
        yield {"ph": "i", "s": "p", "name": f"step {step}", "pid": rank, "tid": 0, "ts": at}


def _event(span: Span, track: int, origin: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": f"{span.kind} {span.unit}".rstrip(),
        "cat": span.kind,
        "pid": span.rank,
        "tid": track,
        "ts": (span.start_ns - origin) / _NS_PER_US,
        "dur": (span.end_ns - span.start_ns) / _NS_PER_US,
        "args": {"unit": span.unit, "bytes": span.bytes, "step": span.step},
    }
