"""Interval arithmetic against a brute-force bitmap: one bit per nanosecond."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.errors import ConfigError
from overlap.profiling.intervals import Interval, intersect, length, subtract, union, within

INTERVAL = st.builds(lambda start, size: (start, start + size), st.integers(-20, 40), st.integers(0, 15))
INTERVALS = st.lists(INTERVAL, max_size=12)


def bitmap(intervals: list[Interval]) -> set[int]:
    return {t for start, end in intervals for t in range(start, end)}


def is_merged(intervals: list[Interval]) -> bool:
    gaps = all(left[1] < right[0] for left, right in pairwise(intervals))
    return gaps and all(start < end for start, end in intervals)


@given(INTERVALS)
def test_union_covers_what_the_bitmap_covers(intervals: list[Interval]) -> None:
    merged = union(intervals)
    assert is_merged(merged)
    assert bitmap(merged) == bitmap(intervals)
    assert length(merged) == len(bitmap(intervals))
    assert union(merged) == merged


@given(INTERVALS, INTERVALS)
def test_intersect_and_subtract_agree_with_the_bitmap(left: list[Interval], right: list[Interval]) -> None:
    a, b = union(left), union(right)
    both, only_a = intersect(a, b), subtract(a, b)
    assert is_merged(both)
    assert is_merged(only_a)
    assert bitmap(both) == bitmap(a) & bitmap(b)
    assert bitmap(only_a) == bitmap(a) - bitmap(b)
    assert length(both) + length(only_a) == length(a)


@given(INTERVALS, INTERVAL)
def test_within_is_the_intersection_with_one_interval(intervals: list[Interval], window: Interval) -> None:
    merged = union(intervals)
    assert bitmap(within(merged, *window)) == bitmap(merged) & bitmap([window])


def test_the_drawing_in_the_docstring() -> None:
    a, b = [(0, 8), (14, 18)], [(5, 13)]
    assert union(a + b) == [(0, 13), (14, 18)]
    assert intersect(a, b) == [(5, 8)]
    assert subtract(a, b) == [(0, 5), (14, 18)]


def test_one_interval_that_spans_many_is_not_consumed_by_the_first() -> None:
    assert subtract([(0, 2), (4, 6), (8, 10)], [(1, 9)]) == [(0, 1), (9, 10)]


def test_a_clock_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"end at or after its start, but got \(5, 4\)"):
        union([(5, 4)])
