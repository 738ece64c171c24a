"""Why communication was exposed: a reason for every piece of it, and what hiding it would gain.

    stream 20   |~~~~~~~#########|====|       ~ waits for a straggler (known where ranks were matched)
    stream 7  ==|                     |===    what comes next there, and when the host launched it, tells the rest
                s                     e

A piece belongs to the collective that began first. Looked at in this order, the first that fits is the reason:

1. straggler rank: a part of the collective in which it waited for the rank that came last.
2. nothing left: no compute follows in the window.
3. same stream: the next compute is queued behind the collective on its own stream.
4. blocking call: the next compute was launched late, for the host sat in a call that waits for the device.
5. launched late by host: the same without such a call.
6. between kernels: the next compute was there and starts before the collective ends; it waits for something else, a
   copy or just the device's own gap between two kernels.
7. same communicator: the next compute was there, but waits for a later collective that queued behind this one.
8. waiting for a dependency: the next compute was there and starts when this collective has ended.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overlap.profiling.breakdown import Cover
from overlap.profiling.intervals import Interval, length, subtract, union, within
from overlap.profiling.nesting import HostEvent
from overlap.profiling.recording import COMMUNICATION, COMPUTE, Activity
from overlap.profiling.skew import Skew

STRAGGLER = "straggler rank"
NOTHING_LEFT = "nothing left to compute"
SAME_STREAM = "same stream"
BLOCKING_CALL = "blocking call"
LATE_HOST = "launched late by host"
BETWEEN_KERNELS = "between kernels"
SAME_COMMUNICATOR = "same communicator"
DEPENDENCY = "waiting for a dependency"

CURES = {
    STRAGGLER: "balance the ranks: hiding does not help while one of them comes late",
    NOTHING_LEFT: "move the collective earlier, or split it so that its beginning runs under compute",
    SAME_STREAM: "launch the collective on a stream of its own",
    BLOCKING_CALL: "take the synchronisation out of the step, or issue compute before it",
    LATE_HOST: "launch compute earlier: fewer launches, CUDA graphs, torch.compile",
    BETWEEN_KERNELS: "fewer and larger kernels, CUDA graphs; copies on a stream of their own",
    SAME_COMMUNICATOR: "give the two collectives communicators of their own",
    DEPENDENCY: "issue the collective earlier (prefetch), or in smaller buckets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedPiece:
    """A stretch of exposed communication with one reason."""

    start_ns: int
    end_ns: int
    reason: str
    collective: Activity
    """What ran."""
    resumed: Activity | None
    """The compute that came next."""
    gain_ns: int
    """Estimate of what the step would lose in length if the piece were hidden."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, times in µs on the clock of the source."""
        return {
            "start_us": self.start_ns / 1000,
            "exposed_us": (self.end_ns - self.start_ns) / 1000,
            "reason": self.reason,
            "gain_us": self.gain_ns / 1000,
            "collective": self.collective.name,
            "unit": self.collective.unit,
            "resumed": self.resumed.name if self.resumed else None,
        }


@dataclass(frozen=True)
class _Scene:
    """What the reasons of one rank are found in."""

    compute: Sequence[Activity]
    starts: Sequence[int]
    comm: Sequence[Activity]
    blocked: Mapping[str, Sequence[Interval]]
    """By host thread: when it sat in a blocking call."""

    def resumed(self, at_ns: int) -> Activity | None:
        """The first compute that starts at or after a moment."""
        place = bisect_left(self.starts, at_ns)
        return self.compute[place] if place < len(self.compute) else None


def exposed_pieces(
    rank: int,
    activities: Sequence[Activity],
    found: Cover,
    waits: Sequence[HostEvent],
    skew: Skew,
    slower: float | None,
) -> list[ExposedPiece]:
    """Every exposed stretch of one rank; their lengths add up to its exposed communication.

    Args:
        rank: whose activities these are.
        activities: of its window.
        found: their cover.
        waits: host calls that block.
        skew: collectives matched over ranks.
        slower: how much slower compute runs beside communication (``Slowdown.fraction``); it lowers the gain.
    """
    compute = sorted((one for one in activities if one.category == COMPUTE), key=lambda one: one.start_ns)
    comm = sorted((one for one in activities if one.category == COMMUNICATION), key=lambda one: one.start_ns)
    scene = _Scene(compute, [one.start_ns for one in compute], comm, _by_thread(waits))
    pieces = []
    for place, start, end in _stretches(comm, found.compute):
        one = comm[place]
        matched = skew.by_activity.get((rank, one))
        alone_from = one.end_ns - matched.transfer_ns if matched else one.start_ns
        for begin, finish, waiting in ((start, min(end, alone_from), True), (max(start, alone_from), end, False)):
            if begin < finish:
                resumed = scene.resumed(end)
                reason = STRAGGLER if waiting else _reason(scene, place, (begin, finish), resumed)
                # What hides it runs slower; no compute has to hide a wait for a straggler.
                factor = 1 if waiting else 1 + max(slower or 0.0, 0.0)
                gain = round((finish - begin) / factor)
                pieces.append(_piece((begin, finish), reason, one, resumed, gain))
    assert sum(piece.end_ns - piece.start_ns for piece in pieces) == length(found.exposed_comm)
    return pieces


def _piece(stretch: Interval, reason: str, collective: Activity, resumed: Activity | None, gain: int) -> ExposedPiece:
    start, end = stretch
    return ExposedPiece(start_ns=start, end_ns=end, reason=reason, collective=collective, resumed=resumed, gain_ns=gain)


def _stretches(comm: Sequence[Activity], compute: Sequence[Interval]) -> Iterator[tuple[int, int, int]]:
    """Exposed stretches, each with the place of the collective that began first."""
    reach = 0
    for place, one in enumerate(comm):
        begin = max(one.start_ns, reach)
        if begin < one.end_ns:
            for start, end in subtract([(begin, one.end_ns)], within(compute, begin, one.end_ns)):
                yield place, start, end
            reach = one.end_ns


def _reason(scene: _Scene, place: int, stretch: Interval, resumed: Activity | None) -> str:
    start, end = stretch
    one = scene.comm[place]
    if resumed is None:
        return NOTHING_LEFT
    if resumed.stream == one.stream:
        return SAME_STREAM
    if _came_late(resumed, one, start):
        return BLOCKING_CALL if _blocked(scene, resumed, stretch) else LATE_HOST
    if resumed.start_ns < one.end_ns:
        return BETWEEN_KERNELS
    return SAME_COMMUNICATOR if _queued_behind(scene.comm, place, resumed, end) else DEPENDENCY


def _came_late(resumed: Activity, one: Activity, start: int) -> bool:
    """Whether the device had no compute to run: by its launch, else by whether it resumed under the collective."""
    if resumed.launched_ns is not None:
        return resumed.launched_ns > start
    return resumed.start_ns < one.end_ns


def _by_thread(waits: Iterable[HostEvent]) -> dict[str, list[Interval]]:
    """Calls lie inside each other (``.item()`` in a synchronisation): merged, each moment counts once."""
    by_thread: dict[str, list[Interval]] = {}
    for wait in waits:
        by_thread.setdefault(wait.thread, []).append((wait.start_ns, wait.end_ns))
    return {thread: union(own) for thread, own in by_thread.items()}


def _blocked(scene: _Scene, resumed: Activity, stretch: Interval) -> bool:
    """Whether the launching thread sat in a blocking call for half the time before the launch, or more."""
    start, end = stretch
    until = min(resumed.launched_ns or end, end)
    sat = length(within(scene.blocked.get(resumed.thread, ()), start, until))
    return 2 * sat >= until - start > 0


def _queued_behind(comm: Sequence[Activity], place: int, resumed: Activity, end: int) -> bool:
    """Whether another collective of the same queue was already launched and had to end before compute resumed."""
    one = comm[place]
    for later in comm[place + 1 :]:
        if later.start_ns >= resumed.start_ns:
            return False
        if later.stream == one.stream and later.launched_ns is not None:
            return later.launched_ns < end and later.end_ns <= resumed.start_ns
    return False
