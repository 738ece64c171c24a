"""Known answers from a drawing, and sums that hold for any activities, checked moment by moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.errors import StateError
from overlap.profiling.breakdown import break_down
from overlap.profiling.recording import CATEGORIES, COMMUNICATION, COMPUTE, COPY, OTHER, Activity, Category


def activity(category: Category, start: int, end: int, **more: object) -> Activity:
    return Activity(name="x", category=category, stream="7", start_ns=start, end_ns=end, **more)


def test_each_moment_counts_once():
    totals = break_down(
        [
            activity(COMPUTE, 3, 8),
            activity(COMMUNICATION, 0, 6),
            activity(COPY, 5, 12),
            activity(COMMUNICATION, 11, 14),
            activity(OTHER, 14, 20),
        ]
    )
    assert (totals.span_ns, totals.compute_ns, totals.comm_ns, totals.copy_ns) == (20, 5, 9, 7)
    assert (totals.hidden_comm_ns, totals.exposed_comm_ns, totals.exposed_copy_ns, totals.idle_ns) == (3, 6, 3, 6)
    assert totals.ratio == pytest.approx(1 / 3)
    assert totals.no_comm_reason is None


def test_no_communication_no_ratio_but_a_reason():
    assert break_down([activity(COMPUTE, 0, 5)]).no_comm_reason == "no collective ran in this window"
    nothing = break_down([activity(COMPUTE, 0, 5), activity(COMMUNICATION, 2, 2)])
    assert nothing.ratio is None
    assert nothing.no_comm_reason == "every collective took 0 ns"


def test_an_empty_window_is_refused():
    with pytest.raises(StateError, match="window must hold at least one activity"):
        break_down([])


ACTIVITIES = st.builds(
    lambda category, start, size: activity(category, start, start + size),
    st.sampled_from(CATEGORIES),
    st.integers(0, 60),
    st.integers(0, 20),
)


@given(st.lists(ACTIVITIES, min_size=1, max_size=25))
def test_a_count_of_every_moment_agrees(activities: list[Activity]):
    totals = break_down(activities)
    counted = dict.fromkeys(("compute", "exposed_comm", "exposed_copy", "idle", "hidden_comm"), 0)
    window = range(min(one.start_ns for one in activities), max(one.end_ns for one in activities))
    for moment in window:
        on = {one.category for one in activities if one.start_ns <= moment < one.end_ns}
        order = ((COMPUTE, "compute"), (COMMUNICATION, "exposed_comm"), (COPY, "exposed_copy"))
        counted[next((name for category, name in order if category in on), "idle")] += 1
        counted["hidden_comm"] += {COMPUTE, COMMUNICATION} <= on
    assert counted == {name: getattr(totals, f"{name}_ns") for name in counted}
    assert totals.span_ns == len(window)
