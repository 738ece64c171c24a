"""Slots of an engine: how many, how large, and which unit has which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from overlap.schedule.spec import NO_SLOT, UnitSpec, ring_slots
from overlap.shard.slot import Slot
from overlap.shard.unit import Unit


@dataclass(frozen=True, slots=True)
class SlotMap:
    """The map unit -> slot, fixed while a graph may hold views of a slot.

    Attributes:
        slots: the memory.
        of_unit: slot number per unit, ``NO_SLOT`` for units without sharded parameters.
        order: the order of forwards that the map was made for.
        shares: whether a unit's slot is one of the ring.
        ring: how many slots the ring has.
    """

    slots: tuple[Slot, ...]
    of_unit: tuple[int, ...]
    order: tuple[int, ...]
    shares: tuple[bool, ...]
    ring: int

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(slot.nbytes for slot in self.slots)

    def misplaced(self, order: tuple[int, ...]) -> bool:
        """Whether another map would fit this order of forwards better."""
        return ring_slots(order, self.shares, self.ring) != ring_slots(self.order, self.shares, self.ring)

    def specs(self, units: Sequence[Unit]) -> tuple[UnitSpec, ...]:
        """What the planner needs to know."""
        return tuple(
            UnitSpec(unit.name, slot, unit.gather_bytes, unit.slot_bytes, unit.leaf, unit.resident)
            for unit, slot in zip(units, self.of_unit, strict=True)
        )


def place_units(units: Sequence[Unit], order: tuple[int, ...], prefetch: int, device: torch.device) -> SlotMap:
    """Allocate slots and give every unit its own.

    Leaf units that let their parameters go share a ring of ``prefetch + 1``: one computes while ``prefetch`` arrive.
    Every other unit has a slot to itself.
    """
    shares = tuple(unit.shares_slot for unit in units)
    ring = prefetch + 1
    numbers = ring_slots(order, shares, ring)
    of_unit = tuple(number if unit.slot_bytes else NO_SLOT for unit, number in zip(units, numbers, strict=True))
    sizes: dict[int, int] = {}
    for unit, number in zip(units, of_unit, strict=True):
        if number != NO_SLOT:
            sizes[number] = max(sizes.get(number, 0), unit.slot_bytes)
    # Units without sharded parameters leave holes in the numbering; close them.
    dense = {number: n for n, number in enumerate(sorted(sizes))}
    slots = tuple(Slot(sizes[number], device) for number in sorted(sizes))
    of_unit = tuple(dense.get(number, NO_SLOT) for number in of_unit)
    for unit, number in zip(units, of_unit, strict=True):
        unit.place(None if number == NO_SLOT else slots[number])
    return SlotMap(slots, of_unit, order, shares, ring)
