"""The trace opens: well-formed, tracks named, nothing negative, slices of a track nest or are disjoint."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from overlap.profiling.perfetto import trace, write_trace
from overlap.profiling.timeline import Span, Timeline

from .conftest import MS, Draw


@pytest.fixture
def document(tmp_path: Path, draw: Draw) -> dict[str, Any]:
    picture = """
        compute   ???AAAA?BBB.bbbb.aaaa...
        gather    aaabbbbb................
        reduce    ................bbb.aaaa
        """
    timeline = Timeline()
    for rank in (1, 0):
        for step in (3, 4):
            origin = 10**18 + step * 30 * MS + rank * 1234
            timeline.extend(draw(picture, rank=rank, step=step, origin_ns=origin))
    write_trace(timeline, tmp_path / "timeline.json")
    read: dict[str, Any] = json.loads((tmp_path / "timeline.json").read_text())
    return read


def events(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_a_process_per_rank_and_a_named_track_per_lane(document: dict[str, Any]) -> None:
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events(document, "M") if e["name"] == "thread_name"}
    ranks = {e["pid"]: e["args"]["name"] for e in events(document, "M") if e["name"] == "process_name"}
    order = {e["args"]["sort_index"] for e in events(document, "M") if e["name"] == "thread_sort_index"}
    assert ranks == {0: "rank 0", 1: "rank 1"}
    assert names == {(rank, tid): lane for rank in (0, 1) for tid, lane in enumerate(("compute", "gather", "reduce"))}
    assert order == {0, 1, 2}
    assert {(e["pid"], e["tid"]) for e in events(document, "X")} == set(names)


def test_slices_carry_unit_bytes_and_step(document: dict[str, Any]) -> None:
    slices = events(document, "X")
    assert len(slices) == 4 * 10
    gather = next(e for e in slices if e["name"] == "gather b")
    assert gather["args"] == {"unit": "b", "bytes": 1000, "step": 3}
    assert gather["dur"] == 5000.0, "microseconds"


def test_times_start_at_zero_and_never_run_backwards(document: dict[str, Any]) -> None:
    slices = events(document, "X")
    assert min(e["ts"] for e in slices) == 0.0
    assert all(e["dur"] >= 0 for e in slices)
    assert document["otherData"]["origin_ns"] == str(10**18 + 90 * MS)


def test_slices_of_a_track_nest_or_are_disjoint(document: dict[str, Any]) -> None:
    tracks = defaultdict(list)
    for e in events(document, "X"):
        begin = round(e["ts"] * 1000)
        tracks[e["pid"], e["tid"]].append((begin, begin + round(e["dur"] * 1000)))
    for slices in tracks.values():
        open_ends: list[int] = []
        for begin, end in sorted(slices, key=lambda pair: (pair[0], -pair[1])):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def test_steps_are_marked_where_they_begin(document: dict[str, Any]) -> None:
    marks = {(e["pid"], e["name"]): e["ts"] for e in events(document, "i")}
    assert marks[0, "step 3"] == 0.0
    assert marks[1, "step 4"] == pytest.approx(30_001.234)


def test_the_whole_model_and_unknown_lanes_have_names() -> None:
    made = trace([Span("compute", "norm", "", 0, 0, 5, 0, 0), Span("nvlink", "copy", "a", 0, 0, 5, 0, 0)])
    assert [e["name"] for e in events(made, "X")] == ["norm", "copy a"]
    tracks = {e["args"]["name"]: e["tid"] for e in events(made, "M") if e["name"] == "thread_name"}
    assert tracks == {"compute": 0, "nvlink": 6}


def test_a_trace_of_nothing_is_well_formed() -> None:
    assert trace([])["traceEvents"] == []
