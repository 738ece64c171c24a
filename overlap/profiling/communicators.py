"""Per communicator and kind of collective: time, size, bandwidth."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from overlap.comm.volume import Collective, algbw, bus_factor
from overlap.profiling.intervals import Interval, length, subtract, union
from overlap.profiling.recording import COMMUNICATION, Activity
from overlap.profiling.skew import Skew

_KNOWN = get_args(Collective)
_GB = 1e9
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorRow:
    """Collectives of one kind on one communicator of one rank."""

    group: str
    """Name of the communicator, else its stream."""
    library: str
    collective: str
    world: int
    """Ranks of the communicator; 0 where unknown."""
    ops: int
    bytes: int
    """Sum of the sizes as nccl-tests counts them, of those whose size is known, B."""
    comm_ns: int
    """Time with at least one of them running."""
    exposed_ns: int
    """The part of it without compute."""
    wait_ns: int | None
    """Waiting for other ranks inside them; None where ranks could not be matched."""
    algbw: float | None
    """Size over time, GB/s; None where no size is known."""
    busbw: float | None
    """``algbw`` times the factor of nccl-tests, GB/s; None where there is none for the kind."""
    transfer_busbw: float | None
    """The same over the time without waiting, GB/s; None where ranks could not be matched."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, times in µs, bandwidths in GB/s."""
        wait_us = None if self.wait_ns is None else self.wait_ns / 1000
        return {
            **{name: getattr(self, name) for name in ("group", "library", "collective", "world", "ops", "bytes")},
            "comm_us": self.comm_ns / 1000,
            "exposed_us": self.exposed_ns / 1000,
            "wait_us": wait_us,
            "algbw_gbs": self.algbw,
            "busbw_gbs": self.busbw,
            "transfer_busbw_gbs": self.transfer_busbw,
        }


def communicator_rows(
    rank: int, activities: Sequence[Activity], compute: Sequence[Interval], skew: Skew
) -> tuple[CommunicatorRow, ...]:
    """The rows of one rank, in order of first appearance."""
    groups: dict[tuple[str, str, str], list[Activity]] = defaultdict(list)
    for one in activities:
        if one.category == COMMUNICATION:
            place = one.message.group or f"stream {one.stream}"
            groups[place, one.library, one.message.collective].append(one)
    return tuple(_row(rank, *key, own, compute, skew) for key, own in groups.items())


def _row(
    rank: int,
    group: str,
    library: str,
    collective: str,
    own: Sequence[Activity],
    compute: Sequence[Interval],
    skew: Skew,
) -> CommunicatorRow:
    covered = union((one.start_ns, one.end_ns) for one in own)
    world = max(one.message.world for one in own)
    sized = [one for one in own if one.message.bytes and one.end_ns > one.start_ns]
    waits = [skew.by_activity[rank, one].wait_of(rank) for one in own if (rank, one) in skew.by_activity]
    matched = [one for one in sized if (rank, one) in skew.by_activity]
    transfer_ns = sum(skew.by_activity[rank, one].transfer_ns for one in matched)
    speed = _gbs(sized, sum(one.end_ns - one.start_ns for one in sized))
    return CommunicatorRow(
        group=group,
        library=library,
        collective=collective,
        world=world,
        ops=len(own),
        bytes=sum(one.message.bytes for one in own),
        comm_ns=length(covered),
        exposed_ns=length(subtract(covered, compute)),
        wait_ns=sum(waits) if waits else None,
        algbw=speed,
        busbw=_on_bus(speed, collective, world),
        transfer_busbw=_on_bus(_gbs(matched, transfer_ns), collective, world),
    )


def _gbs(sized: Sequence[Activity], ns: int) -> float | None:
    return algbw(sum(one.message.bytes for one in sized), ns / _NS_PER_S) / _GB if sized and ns else None


def _on_bus(speed: float | None, collective: str, world: int) -> float | None:
    if speed is None or collective not in _KNOWN or not world:
        return None
    return speed * bus_factor(cast("Collective", collective), world)
