"""How long units keep their full parameters, and where.

    ring        leaves the unit after forward and after backward; its slot is shared
    own slot    stays after forward (``reshard_after_forward=False``), or encloses other units, or lends weights
    resident    stays from step to step: stages 1 and 2, ``reshard_after_backward=False``, ``unshard()`` by hand

What a resident unit holds is old once weights have changed; the next pass gathers it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from overlap.engine.gradients import Gradients
from overlap.engine.slots import place_units
from overlap.schedule.spec import StepSpec
from overlap.shard.flat import Flat
from overlap.shard.unit import Unit


class Residency:
    """The slots of an engine, and whether what they hold is of use.

    Attributes:
        slots: the map unit -> slot.
        prefetch: units gathered ahead; the ring has one slot more.
        epoch: counts maps; graphs of an earlier one read other units' memory.
        generation: counts changes of weights.
        followed: the ring lies along the order of forwards.
    """

    def __init__(self, units: Sequence[Unit], prefetch: int, device: torch.device) -> None:
        self._units, self._device = units, device
        self.prefetch = prefetch
        self.epoch = self.generation = 0
        self.followed = False
        self._cold = True
        self._fetched: set[int] = set()
        self.slots = place_units(units, tuple(range(len(units))), prefetch, device)

    @property
    def residents(self) -> set[int]:
        """Units that keep their parameters from step to step."""
        return {n for n, unit in enumerate(self._units) if unit.resident}

    @property
    def held(self) -> frozenset[int]:
        """Units that were unsharded by hand."""
        return frozenset(n for n, unit in enumerate(self._units) if unit.held)

    def step_spec(self, gradients: Gradients) -> StepSpec:
        """What the planner needs to know of units and buckets."""
        return StepSpec(self.slots.specs(self._units), gradients.specs())

    def refresh(self, before: Callable[[Flat], None]) -> None:
        """Bring what gathers send up to date with the masters; ``before`` is told of each flat that changes."""
        changed = [flat.refresh_shard(before) for unit in self._units for flat in unit.flats]
        if any(changed):
            self.generation += 1
            self._cool()

    def begin(self, residents: set[int]) -> bool:
        """A pass begins and will gather what is missing; whether what resident units hold is of no use."""
        stale = self._cold and not residents <= self._fetched
        self._cold = False
        self._fetched.clear()
        return stale

    def fetched(self, unit: int) -> None:
        """A unit has been gathered outside of a pass."""
        self._fetched.add(unit)

    def dropped(self, unit: int) -> None:
        """It has been let go again."""
        self._fetched.discard(unit)

    def follow(self, order: tuple[int, ...]) -> bool:
        """Lay the ring along the order that forwards really have, once; True if units have moved."""
        if self.followed or not self.slots.misplaced(order):
            return False
        self.followed = True
        self.place(order)
        return True

    def place(self, order: tuple[int, ...] | None = None) -> None:
        """Give units slots anew: between passes."""
        self.slots = place_units(self._units, order or self.slots.order, self.prefetch, self._device)
        self.epoch += 1
        self._cool()

    def _cool(self) -> None:
        self._cold = True
        self._fetched.clear()
