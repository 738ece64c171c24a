"""Spans are kept per step, by any thread, in bounded memory, and survive a file."""

import threading
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from overlap.errors import ConfigError
from overlap.profiling.timeline import Span, Timeline


def span(step: int = 0, start: int = 0, rank: int = 0, lane: str = "gather", kind: str = "gather") -> Span:
    return Span(lane, kind, "blocks.0", 64, start, start + 10, step, rank)


def test_steps_are_ascending_and_their_spans_in_order_of_start() -> None:
    timeline = Timeline()
    timeline.extend([span(step=2, start=50), span(step=1, start=30), span(step=2, start=40)])
    assert timeline.steps() == [1, 2]
    assert [one.start_ns for one in timeline.of_step(2)] == [40, 50]
    assert [one.start_ns for one in timeline] == [30, 40, 50]
    assert timeline.of_step(7) == []
    assert len(timeline) == 3


def test_memory_is_bounded_by_the_latest_steps() -> None:
    timeline = Timeline(keep_steps=2)
    for step in range(5):
        timeline.add(span(step=step))
    assert timeline.steps() == [3, 4]
    timeline.add(span(step=1))
    assert timeline.steps() == [3, 4], "a lane that reports late must not push out a newer step"


def test_clear_forgets_everything() -> None:
    timeline = Timeline()
    timeline.add(span())
    timeline.clear()
    assert timeline.steps() == []
    assert len(timeline) == 0


def test_lanes_add_from_their_own_threads() -> None:
    timeline = Timeline(keep_steps=50)
    start = threading.Barrier(4)

    def lane(rank: int) -> None:
        start.wait()
        for step in range(50):
            for at in range(20):
                timeline.add(span(step=step, start=at, rank=rank))

    threads = [threading.Thread(target=lane, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(timeline) == 4 * 50 * 20
    assert timeline.ranks() == [0, 1, 2, 3]


def test_json_round_trip(tmp_path: Path, step_of_the_docs: list[Span]) -> None:
    timeline = Timeline()
    timeline.extend(step_of_the_docs)
    timeline.to_json(tmp_path / "spans.json")
    assert list(Timeline.from_json(tmp_path / "spans.json")) == list(timeline)


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]", '{"format": "overlap-timeline-0"}'])
def test_another_kind_of_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "timeline.json").write_text(text)
    with pytest.raises(ConfigError, match=r"timeline\.json must be 'overlap-timeline-1'"):
        Timeline.from_json(tmp_path / "timeline.json")


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_no_step_is_refused(keep: int) -> None:
    with pytest.raises(ConfigError, match="keep_steps must be 1 or more"):
        Timeline(keep_steps=keep)


@pytest.mark.parametrize(
    ("lane", "kind", "busy", "stalled", "communicates"),
    [
        ("compute", "forward", True, False, False),
        ("compute", "stall", False, True, False),
        ("gather", "gather", False, False, True),
        ("replicate", "replicate", False, False, True),
        ("host", "gather", False, False, False),
        ("disk", "stall", False, False, False),
    ],
)
def test_what_a_span_counts_as(lane: str, kind: str, busy: bool, stalled: bool, communicates: bool) -> None:
    one = span(lane=lane, kind=kind)
    assert (one.busy, one.stalled, one.communicates) == (busy, stalled, communicates)


def test_spans_are_frozen() -> None:
    one: Any = span()
    with pytest.raises(FrozenInstanceError):
        one.bytes = 1
