"""Activities as bars to draw, a lane per stream; where there are too many, neighbours of one kind become one bar."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from overlap.profiling.recording import COMMUNICATION, Activity, Category

LIMIT = 40_000
"""Bars of one rank that a page draws fluently."""


class Bar(NamedTuple):
    """One activity, or neighbours of one kind on one stream."""

    start_ns: int
    end_ns: int
    name: str
    category: Category
    unit: str
    phase: str
    activities: int


def lanes_of(activities: Sequence[Activity], limit: int = LIMIT) -> list[tuple[str, list[Bar]]]:
    """Lanes by name, those that communicate first below compute's; at most about ``limit`` bars."""
    lanes = {name: [_bar(one) for one in own] for name, own in _by_stream(activities).items()}
    gap_ns = 1000
    while sum(map(len, lanes.values())) > limit and gap_ns < 10**12:
        lanes = {name: _merged(bars, gap_ns) for name, bars in lanes.items()}
        gap_ns *= 2
    return list(lanes.items())


def _by_stream(activities: Sequence[Activity]) -> dict[str, list[Activity]]:
    """Streams with most work first, those of communication behind those of compute."""
    streams: dict[str, list[Activity]] = defaultdict(list)
    for one in activities:
        streams[one.stream].append(one)

    def order(item: tuple[str, list[Activity]]) -> tuple[bool, int]:
        own = item[1]
        communicates = 2 * sum(one.category == COMMUNICATION for one in own) > len(own)
        return communicates, -sum(one.end_ns - one.start_ns for one in own)

    return {_label(name): own for name, own in sorted(streams.items(), key=order)}


def _label(stream: str) -> str:
    return f"stream {stream}" if stream.isdigit() else stream


def _bar(one: Activity) -> Bar:
    return Bar(one.start_ns, one.end_ns, one.name, one.category, one.unit, one.phase, 1)


def _merged(bars: Sequence[Bar], gap_ns: int) -> list[Bar]:
    """Neighbours of one category, unit and phase that are at most ``gap_ns`` apart, joined."""
    joined: list[Bar] = []
    for bar in bars:
        last = joined[-1] if joined else None
        if last and last[3:6] == bar[3:6] and bar.start_ns - last.end_ns <= gap_ns:
            together = last.activities + bar.activities
            name = f"{together} of {bar.category}"
            end_ns = max(last.end_ns, bar.end_ns)
            joined[-1] = Bar(last.start_ns, end_ns, name, bar.category, bar.unit, bar.phase, together)
        else:
            joined.append(bar)
    return joined
