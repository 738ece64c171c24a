import pytest

from overlap.profiling.gate import FIGURES, Gate
from overlap.profiling.rank_report import Report, measure_rank
from overlap.profiling.recording import Recording
from overlap.profiling.selection import ReportOptions

from .activities import collective, compute


def report(*ranks):
    options = ReportOptions()
    recordings = [Recording(rank=rank, source="t", activities=activities) for rank, activities in enumerate(ranks)]
    return Report(source="t", options=options, ranks=tuple(measure_rank(one, options) for one in recordings))


HALF = (compute(0, 10), collective(5, 15))
ALONE = (compute(0, 10),)


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("limit", [0.4, 0.5, 0.6])
def test_every_sign(sign, limit):
    ratio = report(HALF).ranks[0].totals.exposed_comm_ns / 10
    holds = {"<": ratio < limit, "<=": ratio <= limit, ">": ratio > limit, ">=": ratio >= limit}[sign]
    assert bool(Gate.parse(f" exposed_ratio {sign} {limit} ").failures(report(HALF))) is not holds


def test_figures():
    totals = report(HALF).ranks[0].totals
    values = {name: figure(totals) for name, figure in FIGURES.items()}
    assert values == {
        "overlap_ratio": 0.5,
        "exposed_ratio": 0.5,
        "exposed_share": 5 / 15,
        "copy_share": 0,
        "idle_share": 0,
        "compute_share": 10 / 15,
        "span_us": 0.015,
        "exposed_comm_us": 0.005,
    }


def test_one_rank_that_fails_is_named_and_no_value_fails():
    assert Gate.parse("exposed_ratio<0.9").failures(report(HALF, ALONE)) == [
        "rank 1: no exposed_ratio: no collective ran in this window"
    ]
    assert Gate.parse("exposed_share<0.1").failures(report(ALONE, HALF)) == [
        "rank 1: exposed_share is 0.3333, not < 0.1"
    ]
