import pytest

from overlap.profiling.analysis import analyse
from overlap.profiling.rank_report import report
from overlap.profiling.report_perfetto import analysis_trace

from .references import FIXTURES


def test_every_activity_and_every_exposed_piece_is_in_the_trace():
    analysis = analyse(report(str(FIXTURES / "hta_rm128_2rank")))
    trace = analysis_trace(analysis)
    for rank in analysis.ranks:
        own = [event for event in trace["traceEvents"] if event["pid"] == rank.report.rank]
        tracks = {event["tid"]: event["args"]["name"] for event in own if event["name"] == "thread_name"}
        drawn = [event for event in own if event["ph"] == "X"]
        exposed = [event for event in drawn if tracks[event["tid"]] == "exposed"]
        assert len(drawn) - len(exposed) == len(rank.report.activities)
        assert sum(event["dur"] for event in exposed) == pytest.approx(rank.report.totals.exposed_comm_ns / 1000)
        assert "stream 84" in tracks.values()
        assert min(event["ts"] for event in drawn) == 0
