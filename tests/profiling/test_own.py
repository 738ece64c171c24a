"""A timeline of ours gives the same figures by either way in, and by ``metrics.measure``."""

import pytest

from overlap.profiling.aggregate import per_step
from overlap.profiling.classify import classifier
from overlap.profiling.metrics import measure
from overlap.profiling.perfetto import write_trace
from overlap.profiling.rank_report import measure_rank
from overlap.profiling.selection import ReportOptions
from overlap.profiling.sources import read_recordings
from overlap.profiling.timeline import Span, Timeline

from .conftest import MS, Draw

STEP = """
compute   ???AAAA?BBB.bbbb.aaaa...
gather    aaabbbbb................
reduce    ................bbb.aaaa
host      ...........aa...........
"""
WEEKS_NS = 2_000_000_000_000_007  # a clock that has run for weeks


@pytest.fixture
def timeline(draw: Draw) -> Timeline:
    timeline = Timeline()
    for rank in (0, 1):
        for step in (0, 1):
            timeline.extend(draw(STEP, rank=rank, step=step, origin_ns=WEEKS_NS + step * 24 * MS + rank * 7))
    return timeline


@pytest.fixture(params=["timeline", "perfetto"])
def path(request, timeline, tmp_path):
    path = tmp_path / "timeline.json"
    if request.param == "timeline":
        timeline.to_json(path)
    else:
        write_trace(timeline, path)
    return path


def test_figures_are_those_of_measure(path, timeline):
    recordings = read_recordings(path, classifier())
    assert [recording.rank for recording in recordings] == [0, 1]
    for recording in recordings:
        totals = measure_rank(recording, ReportOptions()).totals
        expected = measure([span for span in timeline if span.rank == recording.rank])
        assert (totals.span_ns, totals.compute_ns, totals.comm_ns) == (
            expected.span_ns,
            expected.compute_ns,
            expected.comm_ns,
        )
        assert (totals.hidden_comm_ns, totals.exposed_comm_ns) == (expected.hidden_ns, expected.exposed_ns)
        assert totals.exposed_copy_ns == 2 * MS
        assert totals.idle_ns + totals.exposed_copy_ns == expected.idle_ns


def test_units_are_those_of_measure(path, timeline):
    (first, _) = read_recordings(path, classifier())
    rows = {row.unit: row for row in measure_rank(first, ReportOptions()).units}
    spans = [span for span in timeline if span.rank == 0]
    for expected in measure(spans).units:
        row = rows[expected.unit]
        assert (row.comm_ns, row.hidden_comm_ns, row.exposed_comm_ns) == (
            expected.wire_ns,
            expected.hidden_ns,
            expected.exposed_ns,
        )


def test_window_steps_leaves_the_last_step_out(path, timeline):
    (first, _) = read_recordings(path, classifier())
    totals = measure_rank(first, ReportOptions(window="steps")).totals
    assert totals.span_ns == per_step(timeline, [0])[0, 0].span_ns


def test_stalls_are_waits_and_a_gather_on_one_rank_is_nothing(tmp_path):
    timeline = Timeline()
    timeline.add(Span("compute", "stall", "a", 0, 0, 5, 0, 0))
    timeline.add(Span("gather", "gather", "a", 0, 0, 5, 0, 0))
    timeline.add(Span("compute", "forward", "a", 0, 5, 9, 0, 0))
    timeline.to_json(tmp_path / "t.json")
    (only,) = read_recordings(tmp_path / "t.json", classifier())
    assert [(wait.name, wait.start_ns, wait.end_ns) for wait in only.waits] == [("stall a", 0, 5)]
    totals = measure_rank(only, ReportOptions()).totals
    assert (totals.span_ns, totals.compute_ns, totals.idle_ns, totals.comm_ops) == (9, 4, 5, 0)
