from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from overlap.profiling.bars import lanes_of

from .activities import collective, compute


def test_a_lane_per_stream_compute_first():
    activities = [collective(0, 90), compute(0, 5, stream="9"), compute(5, 50)]
    assert [name for name, _ in lanes_of(activities)] == ["stream 7", "stream 9", "stream 20"]


STARTS = st.lists(
    st.tuples(st.integers(0, 10**7), st.integers(0, 1000), st.sampled_from("ab")), min_size=1, max_size=80
)


@given(STARTS, st.integers(1, 20))
def test_few_bars_cover_what_many_activities_did(starts, limit):
    activities = sorted((compute(at, at + took, unit=unit) for at, took, unit in starts), key=lambda one: one.start_ns)
    ((_, bars),) = lanes_of(activities, limit)
    assert sum(bar.activities for bar in bars) == len(activities)
    changes = sum(one.unit != two.unit for one, two in pairwise(activities))
    assert len(bars) <= max(limit, changes + 1)
    for one in activities:
        assert any(bar.start_ns <= one.start_ns and one.end_ns <= bar.end_ns and bar.unit == one.unit for bar in bars)


def test_nothing_is_joined_without_need():
    activities = [compute(at * 10, at * 10 + 5) for at in range(50)]
    ((_, bars),) = lanes_of(activities, limit=50)
    assert [bar.name for bar in bars] == ["gemm"] * 50
    ((_, joined),) = lanes_of(activities, limit=49)
    assert [bar.name for bar in joined] == ["50 of compute"]
