"""What ``overlap bench host`` was asked for."""

import json
from dataclasses import asdict, dataclass
from typing import Self

from overlap.bench.words import positive, words
from overlap.errors import ConfigError, message

ROWS = 1024
"""Rows of a parameter: every rank of the largest world has one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the model that is trained."""

    units: int
    params: int
    """Per unit."""


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """One run of the host bench."""

    worlds: tuple[int, ...] = (8, 64, 256, 1024)
    units: int = 64
    params: int = 9
    rounds: int = 15

    @classmethod
    def parse(cls, *, worlds: str, units: int, params: int, rounds: int) -> Self:
        """Read the words of the command line.

        Raises:
            ConfigError: a number is none, or out of range.
        """
        return cls(
            worlds=tuple(dict.fromkeys(_world(word) for word in words(worlds))),
            units=positive("units", units),
            params=positive("params", params),
            rounds=positive("rounds", rounds),
        )

    def cases(self) -> list[tuple[int, Shape]]:
        """World sizes with the asked shape; at the first also a quarter of the units, and twice the parameters."""
        asked = Shape(self.units, self.params)
        others = [Shape(max(1, self.units // 4), self.params), Shape(self.units, 2 * self.params)]
        return [*((world, asked) for world in self.worlds), *((self.worlds[0], shape) for shape in others)]


@dataclass(frozen=True, kw_only=True)
class HostTask:
    """What one process measures, and where it leaves what it found."""

    world: int
    units: int
    params: int
    rounds: int
    out: str

    def to_json(self) -> str:
        """Return the task as one line, fit for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild what ``to_json`` wrote."""
        return cls(**json.loads(text))


def _world(word: str) -> int:
    if not word.isdigit() or not 2 <= int(word) <= ROWS:
        cure = "give ranks so"
        raise ConfigError(message("worlds", f"be numbers from 2 to {ROWS}, with commas", word, cure))
    return int(word)
