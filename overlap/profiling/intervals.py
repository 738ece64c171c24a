"""Merged-interval arithmetic on integer nanoseconds.

    a            ████████      ████
    b                 ████████
    union        ███████████████████
    intersect         ███
    subtract     █████         ████        (a - b)

A *merged* list is sorted, disjoint, without empty intervals and without touching neighbours. ``union`` makes
one out of anything; the others take and return merged lists in one linear sweep.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from overlap.errors import ConfigError, message

Interval = tuple[int, int]
"""``[start, end)`` in ns."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Everything covered at least once; empty intervals vanish."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end < start:
            cure = "map both ends onto one clock"
            raise ConfigError(message("interval", "end at or after its start", (start, end), cure))
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif start < end:
            merged.append((start, end))
    return merged


def intersect(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """What both merged lists cover."""
    shared: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            shared.append((start, end))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return shared


def subtract(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """What merged list ``a`` covers and merged list ``b`` does not."""
    left: list[Interval] = []
    j = 0
    for start, end in a:
        while j < len(b) and b[j][1] <= start:
            j += 1
        k = j  # an interval of b may reach over several of a: look ahead without consuming it
        while start < end and k < len(b) and b[k][0] < end:
            if start < b[k][0]:
                left.append((start, b[k][0]))
            start = b[k][1]
            k += 1
        if start < end:
            left.append((start, end))
    return left


def within(merged: Sequence[Interval], start: int, end: int) -> list[Interval]:
    """What a merged list covers of ``[start, end)``; looks at that part alone."""
    first = max(bisect_left(merged, (start, start)) - 1, 0)  # the one before may reach into it
    last = bisect_left(merged, (end, end), first)
    return intersect(merged[first:last], [(start, end)]) if start < end else []


def length(merged: Iterable[Interval]) -> int:
    """Covered time of a merged list, ns."""
    return sum(end - start for start, end in merged)
