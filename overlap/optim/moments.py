"""The moments that an optimizer keeps in the flats of its parameters, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor

from overlap.errors import StateError, message
from overlap.shard.flat import Flat
from overlap.shard.param import ShardedParam

States = MutableMapping[Tensor, dict[str, Any]]
"""``optimizer.state``: by public parameter."""


class Moments:
    """One optimizer's view of ``flat.exp_avg`` and ``flat.exp_avg_sq``.

    Optimizers over different parameters may share a flat, and its moments: each has the rows of its parameters.
    """

    def __init__(self, optimizer: str, first: str, second: str | None = None) -> None:
        """Name them.

        Args:
            optimizer: in messages.
            first: key of the rows of ``exp_avg`` in the state of a parameter.
            second: key of those of ``exp_avg_sq``; None for an optimizer that has one moment and counts no steps.
        """
        self.optimizer, self.first, self.second = optimizer, first, second
        self._mine: dict[int, Tensor] = {}  # of each flat, as this optimizer knows them

    def blank(self, moment: Any) -> dict[str, Any]:
        """The state of a parameter whose moments look like ``moment``, at step 0."""
        if self.second is None:
            return {self.first: moment}
        return {"step": 0, self.first: moment, self.second: moment}

    def give(self, flat: Flat, behind: ShardedParam, states: States) -> None:
        """Start the state of one parameter: step 0, where steps count, and moments of zero.

        Moments that are there already belong to an optimizer built before: it keeps them, but may not step again.
        """
        if flat.exp_avg is None or behind.has_moments:
            self._renew(flat, states)
        elif self.second is not None and flat.exp_avg_sq is None:  # who came before has no use for it
            flat.exp_avg_sq = torch.zeros_like(flat.master)
        self._start(flat, behind, states)

    def check_newest(self, flats: Iterable[Flat]) -> None:
        """Refuse a step on moments that are another's.

        Raises:
            StateError: a later optimizer has taken over some of the parameters.
        """
        if any([self._mine.get(id(flat), flat.exp_avg) is not flat.exp_avg for flat in flats]):  # noqa: C419 - without a generator
            raise StateError(
                message(
                    f"optimizer {self.optimizer}",
                    "be the last one built over its parameters",
                    "parameters whose moments a later one holds",
                    "step the later one, or load this one's state_dict into it",
                )
            )

    def _renew(self, flat: Flat, states: States) -> None:
        flat.exp_avg = torch.zeros_like(flat.master)
        flat.exp_avg_sq = torch.zeros_like(flat.master) if self.second is not None else None
        for behind in flat.params:
            behind.has_moments = False
            if states.get(behind.public):
                self._start(flat, behind, states)

    def _start(self, flat: Flat, behind: ShardedParam, states: States) -> None:
        assert flat.exp_avg is not None
        behind.has_moments = True
        self._mine[id(flat)] = flat.exp_avg
        states[behind.public] = self.blank(flat.rows_of(flat.exp_avg, behind))
        if self.second is not None:
            assert flat.exp_avg_sq is not None
            states[behind.public][self.second] = flat.rows_of(flat.exp_avg_sq, behind)
