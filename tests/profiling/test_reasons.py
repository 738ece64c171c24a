"""Each reason in its plainest picture, and pieces that add up for any activities."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.profiling.breakdown import cover
from overlap.profiling.nesting import HostEvent
from overlap.profiling.reasons import (
    BETWEEN_KERNELS,
    BLOCKING_CALL,
    CURES,
    DEPENDENCY,
    LATE_HOST,
    NOTHING_LEFT,
    SAME_COMMUNICATOR,
    SAME_STREAM,
    STRAGGLER,
    exposed_pieces,
)
from overlap.profiling.skew import match

from .activities import collective, compute


def pieces(*activities, waits=(), others=(), slower=None):
    skew = match(dict(enumerate([activities, *others])))
    return exposed_pieces(0, activities, cover(activities), waits, skew, slower)


def reasons(*activities, **more):
    return [(piece.reason, piece.start_ns, piece.end_ns) for piece in pieces(*activities, **more)]


BEFORE = compute(0, 10, launched_ns=0, thread="1")


def test_a_dependency_holds_compute_that_was_launched_in_time():
    after = compute(30, 40, launched_ns=5)
    assert reasons(BEFORE, collective(8, 30, launched_ns=2), after) == [(DEPENDENCY, 10, 30)]


def test_a_collective_on_the_stream_of_compute():
    after = compute(30, 40, launched_ns=5)
    assert reasons(BEFORE, collective(10, 30, stream="7"), after) == [(SAME_STREAM, 10, 30)]


def test_the_host_was_late():
    after = compute(30, 40, launched_ns=25, thread="1")
    assert reasons(BEFORE, collective(8, 30), after) == [(LATE_HOST, 10, 30)]


def test_the_host_was_late_because_it_sat_in_a_blocking_call():
    after = compute(30, 40, launched_ns=25, thread="1")
    sync = HostEvent("cudaStreamSynchronize", "1", 5, 24, {})
    assert reasons(BEFORE, collective(8, 30), after, waits=[sync]) == [(BLOCKING_CALL, 10, 30)]
    elsewhere = HostEvent("cudaStreamSynchronize", "2", 5, 24, {})
    assert reasons(BEFORE, collective(8, 30), after, waits=[elsewhere]) == [(LATE_HOST, 10, 30)]
    short = HostEvent("cudaStreamSynchronize", "1", 5, 14, {})
    nested = [HostEvent("aten::item", "1", 4, 16, {}), HostEvent("aten::_local_scalar_dense", "1", 5, 15, {}), short]
    assert reasons(BEFORE, collective(8, 30), after, waits=nested) == [(LATE_HOST, 10, 30)]
    assert reasons(BEFORE, collective(8, 30), after, waits=[short]) == [(LATE_HOST, 10, 30)]


def test_a_gap_between_kernels_under_a_collective_that_goes_on():
    after = compute(12, 40, launched_ns=5)
    assert reasons(BEFORE, collective(8, 30), after) == [(BETWEEN_KERNELS, 10, 12)]


def test_a_collective_that_had_to_queue_behind_another():
    first, second = collective(8, 20, launched_ns=2), collective(20, 30, launched_ns=3)
    after = compute(30, 40, launched_ns=5)
    assert reasons(BEFORE, first, second, after) == [(SAME_COMMUNICATOR, 10, 20), (DEPENDENCY, 20, 30)]
    other_stream = collective(20, 30, launched_ns=3, stream="21")
    assert reasons(BEFORE, first, other_stream, after) == [(DEPENDENCY, 10, 20), (DEPENDENCY, 20, 30)]


def test_nothing_is_left_to_compute():
    assert reasons(BEFORE, collective(8, 30)) == [(NOTHING_LEFT, 10, 30)]


def test_the_wait_for_a_straggler_is_told_from_the_transfer():
    after = compute(30, 40, launched_ns=5)
    mine = collective(8, 30, launched_ns=2)
    late = [compute(0, 20), collective(24, 30)]
    assert reasons(BEFORE, mine, after, others=[late]) == [(STRAGGLER, 10, 24), (DEPENDENCY, 24, 30)]


def test_two_collectives_at_once_are_one_stretch():
    long, short = collective(8, 30), collective(9, 15, stream="21")
    after = compute(30, 40, launched_ns=5)
    assert reasons(BEFORE, long, short, after) == [(DEPENDENCY, 10, 30)]


def test_what_hides_runs_slower_so_the_gain_is_less():
    after = compute(30, 40, launched_ns=5)
    (plain,) = pieces(BEFORE, collective(8, 30), after)
    (slowed,) = pieces(BEFORE, collective(8, 30), after, slower=0.25)
    assert (plain.gain_ns, slowed.gain_ns) == (20, 16)
    (faster,) = pieces(BEFORE, collective(8, 30), after, slower=-0.5)
    assert faster.gain_ns == 20


def test_without_launches_compute_that_resumes_under_the_collective_came_late():
    assert reasons(compute(0, 10), collective(8, 30), compute(20, 40)) == [(LATE_HOST, 10, 20)]
    assert reasons(compute(0, 10), collective(8, 30), compute(31, 40)) == [(DEPENDENCY, 10, 30)]


TIMES = st.tuples(st.integers(0, 60), st.integers(0, 15), st.sampled_from(["7", "20", "21"]), st.integers(0, 50))
ACTIVITIES = st.builds(
    lambda kind, times: kind(times[0], times[0] + times[1], stream=times[2], launched_ns=times[3]),
    st.sampled_from([compute, collective]),
    TIMES,
)


@given(st.lists(ACTIVITIES, min_size=1, max_size=20), st.lists(ACTIVITIES, max_size=20))
def test_pieces_add_up_and_each_has_a_cure(own, other):
    found = pieces(*own, others=[other])  # the sum is asserted inside
    assert all(piece.reason in CURES for piece in found)
    ends = [(piece.start_ns, piece.end_ns) for piece in sorted(found, key=lambda piece: piece.start_ns)]
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_a_piece_is_json_ready():
    (piece,) = pieces(BEFORE, collective(1000, 30_000, unit="blocks.0"), compute(30_000, 40_000, launched_ns=5))
    assert piece.to_dict() == {
        "start_us": 1.0,
        "exposed_us": 29.0,
        "reason": DEPENDENCY,
        "gain_us": 29.0,
        "collective": "ncclDevKernel_AllGather_RING_LL",
        "unit": "blocks.0",
        "resumed": "gemm",
    }
    assert pytest.approx(piece.gain_ns) == 29_000
