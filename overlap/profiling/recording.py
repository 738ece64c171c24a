"""What one rank did, whoever recorded it: activities on streams, and ranges on the host that explain them.

    host      |--launch--|                    an activity knows when the host launched it and
    stream 7        .....|== kernel ==|       which unit it belongs to, where the source says so
    stream 20            |== all-gather ==|

Readers (``kineto``, ``nsys``, ``own``) make recordings; ``breakdown`` and what follows never ask where one came from.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from overlap.profiling.nesting import HostEvent

Category = Literal["compute", "communication", "copy", "memset", "other"]

COMPUTE: Category = "compute"
COMMUNICATION: Category = "communication"
COPY: Category = "copy"
MEMSET: Category = "memset"
OTHER: Category = "other"
"""Neither works nor moves anything, a wait for instance: it stretches the window and leaves it idle."""
CATEGORIES: tuple[Category, ...] = (COMPUTE, COMMUNICATION, COPY, MEMSET, OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a collective said about itself; everything is optional, sources differ."""

    collective: str = ""
    """all_gather, reduce_scatter, all_reduce, ...; "" where unknown."""
    bytes: int = 0
    """Size as nccl-tests counts it: the whole tensor, B; 0 where unknown."""
    wire_bytes: int = 0
    """What this rank must send, B (``comm.volume.wire_bytes``); 0 where unknown."""
    group: str = ""
    """Name of the communicator; "" where unknown."""
    world: int = 0
    """Ranks of the communicator; 0 where unknown."""


NO_MESSAGE = Message()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Work on one stream of one rank, ``[start_ns, end_ns)``."""

    name: str
    """Kernel, copy or range, as the source names it."""
    category: Category
    """What the time counts as."""
    stream: str
    """Queue it ran on: a CUDA stream, a lane, a thread."""
    start_ns: int
    """ns on the clock of the source."""
    end_ns: int
    """ns, not before ``start_ns``."""
    shape: str = ""
    """Grid and block of a kernel, to tell apart kernels of one name; "" where unknown."""
    launched_ns: int | None = None
    """When the host began to launch it; None where nobody recorded it, and for work of the host itself."""
    thread: str = ""
    """Host thread that launched it, or ran it; "" where unknown."""
    ranges: tuple[str, ...] = ()
    """Names of the host's ranges that were open when it was launched, outermost first."""
    unit: str = ""
    """Module, unit or range it belongs to; "" where unknown."""
    phase: str = ""
    """forward, backward, gather, ...; "" where unknown."""
    library: str = ""
    """Of communication: NCCL, RCCL, gloo, ... as the manifest says."""
    message: Message = NO_MESSAGE
    """Of communication: what travelled."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Everything one rank recorded, on one clock."""

    rank: int
    """Global rank; 0 where the source does not say."""
    source: str
    """File it was read from."""
    activities: tuple[Activity, ...]
    """In order of start."""
    steps: tuple[HostEvent, ...] = ()
    """Steps as the program marked them on the host (``ProfilerStep#n``), in order of start."""
    waits: tuple[HostEvent, ...] = ()
    """Host calls that block until the device is done: synchronisations, ``.item()``; in order of start."""
    notes: tuple[str, ...] = field(default=())
    """What the source lacks and what was assumed instead; shown in the report."""


def chronological(activities: Iterable[Activity]) -> tuple[Activity, ...]:
    """In order of start; of those that start together the longer one first."""
    return tuple(sorted(activities, key=lambda activity: (activity.start_ns, -activity.end_ns)))
