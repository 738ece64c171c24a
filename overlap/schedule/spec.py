"""What the planner needs to know of a model: indices and byte counts, no tensors."""

from __future__ import annotations

from dataclasses import dataclass

NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """One unit.

    Attributes:
        name: fully qualified module name; "" for the root.
        slot: the memory its full parameters are gathered into; ``NO_SLOT`` when nothing of it is sharded.
        gather_bytes: wire bytes this rank sends for one gather.
        slot_bytes: bytes of full parameters, padding included.
        leaf: contains no other unit, so that its compute never encloses another unit's.
        resident: keeps its full parameters from step to step (stages 1 and 2): gathered only after an update.
    """

    name: str
    slot: int
    gather_bytes: int
    slot_bytes: int
    leaf: bool
    resident: bool


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """One bucket: gradients that are reduced together.

    Attributes:
        name: for tables, e.g. ``blocks.3`` or ``replicated``.
        buffer: the memory it is packed into; buckets that share a buffer take turns.
        wire_bytes: bytes this rank sends to reduce it.
        pack_bytes: bytes of the bucket.
        replicate_bytes: bytes this rank sends to sum its shard over replicas; 0 where there are none.
    """

    name: str
    buffer: int
    wire_bytes: int
    pack_bytes: int
    replicate_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepSpec:
    """All units and buckets; list positions are the indices that ops carry."""

    units: tuple[UnitSpec, ...]
    buckets: tuple[BucketSpec, ...]


def ring_slots(order: tuple[int, ...], leaf: tuple[bool, ...], ring: int) -> tuple[int, ...]:
    """Map each unit to its slot, once and for all.

    Leaf units share a ring in the order their forwards run: unit number i of that order takes slot i mod ring,
    so that the ``ring - 1`` units ahead never collide with the one computing. A unit that encloses others is in
    use while they compute, and gets a slot of its own behind the ring.

    Args:
        order: unit indices in order of first forward; units missing from it follow in index order.
        leaf: per unit, whether it encloses no other.
        ring: number of ring slots, at least 2.
    """
    full_order = [*order, *(i for i in range(len(leaf)) if i not in set(order))]
    leaves = [i for i in full_order if leaf[i]]
    slots = {unit: position % ring for position, unit in enumerate(leaves)}
    shared = min(ring, len(leaves))
    slots |= {unit: shared + n for n, unit in enumerate(i for i in full_order if not leaf[i])}
    return tuple(slots[i] for i in range(len(leaf)))
