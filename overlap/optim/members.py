"""Which flats parameters lie in: found once, and anew when the parameters are others.

Every step and every clip asks, and asking each parameter costs more than updating a small one. What was found must keep
no model alive: flats are held weakly, parameters by id. Ids count while all of the flats live: a flat keeps its public
parameters, and they never change places, so that an id is still that parameter's. What lies in no flat has nobody to
keep it: it is held weakly, and compared itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from overlap.optim.chosen import Share
from overlap.shard.flat import Flat, Home, home_of


@dataclass(frozen=True, slots=True)
class _Part:
    """Parameters of one flat, in the order given.

    Attributes:
        flat: theirs.
        places: in ``flat.params``.
        positions: among all that were given.
    """

    flat: weakref.ref[Flat]
    places: list[int]
    positions: list[int]


class Found(NamedTuple):
    """Where parameters lie; each counts once."""

    shares: list[Share]
    """By flat, in the order in which parameters name them."""
    others: list[Tensor]
    """Parameters that lie in no flat."""


class Members:
    """Remembers where the parameters lie that were asked for last."""

    def __init__(self) -> None:
        """None were."""
        self._ids: list[int] = []
        self._parts: list[_Part] = []
        self._others: list[tuple[int, weakref.ref[Tensor]]] = []

    def find(self, params: Sequence[Tensor]) -> Found:
        """Where they lie."""
        flats = self._flats_of(params)
        if flats is None:
            flats = self._resolve(params)
        shares = [
            Share(flat, [flat.params[place] for place in part.places], part.positions)
            for flat, part in zip(flats, self._parts, strict=True)
        ]
        return Found(shares, [params[position] for position, _ in self._others])

    def are(self, params: Iterable[Tensor]) -> bool:
        """Whether these are the ones that were asked for, and in this order; of what has lived since then."""
        return [*map(id, params)] == self._ids

    def _flats_of(self, params: Sequence[Tensor]) -> list[Flat] | None:
        """Flats that were found, if they were for these parameters."""
        flats = [flat for part in self._parts if (flat := part.flat()) is not None]
        if len(flats) != len(self._parts) or not self.are(params):
            return None
        return flats if all(param() is params[position] for position, param in self._others) else None

    def _resolve(self, params: Sequence[Tensor]) -> list[Flat]:
        positions: dict[int, int] = {}
        for position, param in enumerate(params):
            positions.setdefault(id(param), position)
        homes = [(position, home_of(params[position])) for position in positions.values()]
        inside: dict[Flat, dict[int, Home]] = {}
        for position, home in homes:
            if home is not None:
                inside.setdefault(home.flat, {})[position] = home
        self._ids = [*map(id, params)]
        self._parts = [_part(flat, members) for flat, members in inside.items()]
        self._others = [(position, weakref.ref(params[position])) for position, home in homes if home is None]
        return list(inside)


def _part(flat: Flat, members: dict[int, Home]) -> _Part:
    places = {param: place for place, param in enumerate(flat.params)}
    return _Part(weakref.ref(flat), [places[home.param] for home in members.values()], list(members))
