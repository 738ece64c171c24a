"""What was measured as a trace for ui.perfetto.dev: a process per rank, a track per stream, exposed pieces above.

rank 0   exposed    |waiting for a dependency|
         stream 7   |gemm|gemm|...
         stream 20  |all-gather              |
"""

from collections.abc import Iterable
from typing import Any

from overlap.profiling.analysis import Analysis, RankAnalysis
from overlap.profiling.recording import Activity


def analysis_trace(analysis: Analysis) -> dict[str, Any]:
    """JSON-ready; times in µs since the start of each rank's window."""
    events = [event for rank in analysis.ranks for event in _rank(rank)]
    return {"displayTimeUnit": "ms", "otherData": {"source": analysis.report.source}, "traceEvents": events}


def _rank(rank: RankAnalysis) -> Iterable[dict[str, Any]]:
    pid, origin = rank.report.rank, rank.report.cover.window[0]
    tracks = {"exposed": 0}
    for one in rank.report.activities:
        tracks.setdefault(one.stream, len(tracks))
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"rank {pid}"}}
    for name, tid in tracks.items():
        label = f"stream {name}" if name.isdigit() else name
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
    for piece in rank.pieces:
        args = {"collective": piece.collective.name, "gain_us": piece.gain_ns / 1000}
        yield _event(piece.reason, "exposed", pid, 0, piece.start_ns - origin, piece.end_ns - piece.start_ns, args)
    for one in rank.report.activities:
        took = one.end_ns - one.start_ns
        yield _event(one.name, one.category, pid, tracks[one.stream], one.start_ns - origin, took, _args(one))


def _event(
    name: str, category: str, pid: int, tid: int, start_ns: int, took_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": start_ns / 1000, "dur": took_ns / 1000}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **times, "args": args}


def _args(one: Activity) -> dict[str, Any]:
    told = {"unit": one.unit, "phase": one.phase, "library": one.library, "bytes": one.message.bytes}
    return {name: value for name, value in told.items() if value}
