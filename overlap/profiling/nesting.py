"""Which ranges of a host thread were open at a moment: what a kernel is launched under explains it.

thread 1  |---------- step ----------|
            |-- block 0 --|-- block 1 --|
                   ^ launch              step > block 0
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class HostEvent(NamedTuple):
    """Something with a name on a host thread: a range, a module, an operator, a runtime call, a step."""

    name: str
    thread: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any]


Moment = tuple[str, int]
"""(thread, ns)"""


def enclosing(events: Iterable[HostEvent], moments: Sequence[Moment]) -> list[tuple[HostEvent, ...]]:
    """For each moment the events of its thread that were open then, outermost first.

    Ranges may also cross (NVTX start/end): order is that of their starts. ``n log n`` in events and moments.
    """
    by_thread: dict[str, list[HostEvent]] = defaultdict(list)
    for event in events:
        by_thread[event.thread].append(event)
    asked: dict[str, list[int]] = defaultdict(list)
    for place, (thread, _) in enumerate(moments):
        asked[thread].append(place)
    answers: list[tuple[HostEvent, ...]] = [()] * len(moments)
    for thread, places in asked.items():
        own = sorted(by_thread.get(thread, ()), key=lambda event: (event.start_ns, -event.end_ns))
        places.sort(key=lambda place: moments[place][1])
        _sweep(own, [(moments[place][1], place) for place in places], answers)
    return answers


def _sweep(events: Sequence[HostEvent], asked: Sequence[tuple[int, int]], answers: list[tuple[HostEvent, ...]]) -> None:
    still: list[HostEvent] = []
    following = 0
    for at_ns, place in asked:
        while following < len(events) and events[following].start_ns <= at_ns:
            while still and still[-1].end_ns <= events[following].start_ns:
                still.pop()
            still.append(events[following])
            following += 1
        still = [event for event in still if event.end_ns > at_ns]
        answers[place] = tuple(still)


def innermost(events: Iterable[HostEvent]) -> list[HostEvent]:
    """Nested events cut into pieces, so that each moment of a thread belongs to the innermost one alone."""
    pieces: list[HostEvent] = []
    by_thread: dict[str, list[HostEvent]] = defaultdict(list)
    for event in events:
        by_thread[event.thread].append(event)
    for own in by_thread.values():
        _cut(sorted(own, key=lambda event: (event.start_ns, -event.end_ns)), pieces)
    return pieces


def _cut(events: Sequence[HostEvent], pieces: list[HostEvent]) -> None:
    still: list[HostEvent] = []
    at_ns = 0

    def advance(to_ns: int) -> None:
        """Give the time from the last border to this one to whoever was innermost, and close what has ended."""
        nonlocal at_ns
        while still:
            until_ns = min(to_ns, still[-1].end_ns)
            if until_ns > at_ns:
                name, thread, _, _, args = still[-1]
                pieces.append(HostEvent(name, thread, at_ns, until_ns, args))
                at_ns = until_ns
            if still[-1].end_ns > to_ns:
                break
            still.pop()
        at_ns = max(at_ns, to_ns)

    for event in events:
        advance(event.start_ns)
        still.append(event)
    advance(max((event.end_ns for event in events), default=0))
