"""One operation of a step, as data.

Ops name the events they wait for and the one event they record. Events are named by what has become
true: ``gathered:3`` (unit 3's full parameters are in their slot), ``forward_done:3`` (its forward no longer
reads the slot), ``packed:1``, ``reduced:1``, ``replicated:1`` (bucket 1). A second occurrence in the same pass is
``gathered:3#2``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class LaneName(StrEnum):
    """An ordered queue of work. One CUDA stream, or one CPU worker thread, each."""

    COMPUTE = "compute"
    GATHER = "gather"
    REDUCE = "reduce"
    REPLICATE = "replicate"


class Kind(StrEnum):
    """What an op does; the engine binds each kind to a callable."""

    BEGIN = "begin"  # everything of earlier passes is behind this point of the compute lane
    GATHER = "gather"  # a unit's rows of all ranks -> its slot
    FORWARD = "forward"  # entry: from here the forward reads the slot
    FORWARD_END = "forward_end"  # exit: it no longer does
    BACKWARD = "backward"
    BACKWARD_END = "backward_end"
    PACK = "pack"  # gradients -> bucket
    REDUCE = "reduce"  # bucket -> this rank's gradient shard (or every rank's replica)
    REPLICATE = "replicate"  # hybrid sharding: that shard, summed over the ranks that hold the same one
    END = "end"  # all gradients are where the optimizer reads them


ENTRY_OF_EXIT = {Kind.FORWARD_END: Kind.FORWARD, Kind.BACKWARD_END: Kind.BACKWARD}
EXIT_OF_ENTRY = {entry: exit_ for exit_, entry in ENTRY_OF_EXIT.items()}

_COMMUNICATES = {Kind.GATHER: LaneName.GATHER, Kind.REDUCE: LaneName.REDUCE, Kind.REPLICATE: LaneName.REPLICATE}
LANE_OF = {kind: _COMMUNICATES.get(kind, LaneName.COMPUTE) for kind in Kind}
"""Everything that does not communicate is ordered with compute."""

OF_BUCKETS = (Kind.PACK, Kind.REDUCE, Kind.REPLICATE)


@dataclass(frozen=True, slots=True)
class Position:
    """A point of the training program that hooks can see: an entry or exit of a unit's compute."""

    kind: Kind
    unit: int


@dataclass(frozen=True, slots=True)
class Op:
    """One planned operation.

    Attributes:
        kind: what it does.
        index: unit index; bucket index for PACK, REDUCE and REPLICATE; -1 for BEGIN and END.
        bytes: wire bytes this rank sends, memory bytes written for PACK, else 0.
        waits: events that must be true before it starts.
        records: the event that is true once it has finished.
        frees: for an exit: the unit's slot is refilled (or unused) before anyone reads it again.
        lane: it runs on.
    """

    kind: Kind
    index: int
    bytes: int
    waits: tuple[str, ...]
    records: str
    frees: bool = False
    lane: LaneName = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Every step asks for the lane; the kind says it."""
        object.__setattr__(self, "lane", LANE_OF[self.kind])
