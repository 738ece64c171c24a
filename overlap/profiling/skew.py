"""Waiting and transferring inside collectives: the same collective on all ranks, laid side by side.

    rank 0   |~~~~~~~~~~~~~~~~~~#####|      ~ waits for the last rank to arrive
    rank 1             |~~~~~~~~#####|      # transfer: what it takes the rank that waits for nobody
    rank 2                      |####|      the straggler

The transfer is the shortest duration over ranks. Durations do not need one clock; the two skews do.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overlap.profiling.recording import COMMUNICATION, Activity


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective on all ranks that took part."""

    index: int
    """Number among those of its communicator, from 0."""
    members: Mapping[int, Activity]
    """By rank."""

    @property
    def name(self) -> str:
        """As the first rank's trace has it."""
        return next(iter(self.members.values())).name

    @property
    def transfer_ns(self) -> int:
        """The shortest duration over ranks."""
        return min(one.end_ns - one.start_ns for one in self.members.values())

    @property
    def longest_ns(self) -> int:
        """The longest duration over ranks."""
        return max(one.end_ns - one.start_ns for one in self.members.values())

    @property
    def wait_ns(self) -> int:
        """Waiting of all ranks together."""
        return sum(self.wait_of(rank) for rank in self.members)

    @property
    def start_skew_ns(self) -> int:
        """From the first arrival to the last."""
        starts = [one.start_ns for one in self.members.values()]
        return max(starts) - min(starts)

    @property
    def end_skew_ns(self) -> int:
        """From the first end to the last."""
        ends = [one.end_ns for one in self.members.values()]
        return max(ends) - min(ends)

    @property
    def last_rank(self) -> int:
        """The straggler: who arrived last."""
        return max(self.members, key=lambda rank: self.members[rank].start_ns)

    def wait_of(self, rank: int) -> int:
        """How long a rank waited in the collective for others, ns."""
        one = self.members[rank]
        return one.end_ns - one.start_ns - self.transfer_ns


@dataclass(frozen=True, slots=True)
class Skew:
    """The collectives that could be matched."""

    collectives: tuple[Collective, ...] = ()
    """In order of first start."""
    note: str = ""
    """Why there are none, or not all of them."""
    by_activity: Mapping[tuple[int, Activity], Collective] = field(default_factory=dict)
    """By rank and that rank's part in it."""


def match(ranks: Mapping[int, Sequence[Activity]]) -> Skew:
    """Match collectives over ranks: the n-th of a communicator on one rank is the n-th on every other.

    A communicator goes by its name, else by its number among the unnamed ones of its rank; one on which ranks differ in
    number or kind of collectives is left out.
    """
    if len(ranks) < 2:
        return Skew(note="one rank: waiting for others cannot be told from transfer")
    queues = {rank: _queues(activities) for rank, activities in ranks.items()}
    collectives: list[Collective] = []
    unmatched = 0
    for key in dict.fromkeys(key for own in queues.values() for key in own):
        taking_part = {rank: own[key] for rank, own in queues.items() if key in own}
        if _agree(list(taking_part.values())):
            collectives += _side_by_side(taking_part)
        else:
            unmatched += max(map(len, taking_part.values()))
    collectives.sort(key=lambda one: min(part.start_ns for part in one.members.values()))
    note = f"{unmatched} collectives differ over ranks in number or kind and were not matched" if unmatched else ""
    parts = {(rank, part): one for one in collectives for rank, part in one.members.items()}
    return Skew(tuple(collectives), note, parts)


def _queues(activities: Sequence[Activity]) -> dict[str, list[Activity]]:
    """Collectives by communicator, in the order in which they were asked for."""
    queues: dict[str, list[Activity]] = {}
    unnamed: dict[str, str] = {}
    for one in activities:
        if one.category == COMMUNICATION:
            name = one.message.group or unnamed.setdefault(one.stream, f"number {len(unnamed)}")
            queues.setdefault(name, []).append(one)
    for queue in queues.values():  # threads that share a queue take from it in order, but may start in another
        queue.sort(key=lambda one: one.start_ns if one.launched_ns is None else one.launched_ns)
    return queues


def _agree(queues: Sequence[Sequence[Activity]]) -> bool:
    kinds = Counter(tuple(one.message.collective or one.name for one in queue) for queue in queues)
    return len(queues) > 1 and len(kinds) == 1


def _side_by_side(queues: Mapping[int, Sequence[Activity]]) -> list[Collective]:
    (count,) = {len(queue) for queue in queues.values()}
    return [Collective(index, {rank: queue[index] for rank, queue in queues.items()}) for index in range(count)]
