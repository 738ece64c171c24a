"""What ``overlap bench step`` was asked for. What can be refused is refused here, before any process is started."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch

from overlap.bench.netlab.net import Net, parse_net
from overlap.bench.step.contenders import CONTENDERS, FLOOR
from overlap.bench.step.workload import SIZES
from overlap.bench.words import choose, names, positive, words
from overlap.config import options_from
from overlap.errors import ConfigError, message
from overlap.verify.settings import parse_option

DTYPES = ("fp32", "bf16")
MIN_ROUNDS = 5
SAID_BY_NAMES = frozenset({"stage", "param_dtype", "reduce_dtype"})
"""Options of the engine that the name of a contender stands for."""
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-3}
"""Largest relative difference of a loss from the reference's that is no other training."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """One run of the step bench. Defaults are those of the command line."""

    net: str = "none"
    ranks: int = 2
    contenders: tuple[str, ...] = tuple(CONTENDERS)
    """By name; the floor, to which all are compared, is always among them."""
    dtype: str = "fp32"
    """Of forward and backward."""
    size: str = "base"
    """Name of a model shape."""
    batch: int | None = None
    """Sequences per rank; None for as many as make the floor about as long as stage 3's ideal wire time at 1 Gbit/s."""
    rounds: int = 7
    """In which all take turns."""
    steps: int = 2
    """Of each contender in a round."""
    lr: float = 1e-3
    seed: int = 0
    tolerance: float = TOLERANCE["fp32"]
    options: tuple[str, ...] = ()
    """Of this engine, ``NAME=VALUE`` each."""
    memory: bool = True
    """Run each contender once more, in processes of its own, for its peak memory."""

    @classmethod
    def parse(
        cls,
        *,
        net: str,
        ranks: int,
        contenders: str | None,
        dtype: str,
        size: str,
        batch: int | None,
        rounds: int,
        steps: int,
        seed: int,
        tolerance: float | None,
        options: Sequence[str] | None,
        memory: bool,
    ) -> Self:
        """Read the words of the command line; what is None is chosen here.

        Raises:
            ConfigError: an unknown name (with the nearest known one), a net that is none, a number out of range.
        """
        choose("dtype", dtype, DTYPES)
        choose("size", size, tuple(SIZES))
        if rounds < MIN_ROUNDS:
            cure = "raise it: machines drift, and fewer rounds do not show it"
            raise ConfigError(message("rounds", f"be at least {MIN_ROUNDS}", rounds, cure))
        return cls(
            net=parse_net(net).name,
            ranks=positive("ranks", ranks),
            contenders=_with_floor(tuple(CONTENDERS) if contenders is None else words(contenders)),
            dtype=dtype,
            size=size,
            batch=None if batch is None else positive("batch", batch),
            rounds=rounds,
            steps=positive("steps", steps),
            seed=seed,
            tolerance=TOLERANCE[dtype] if tolerance is None else positive("tolerance", tolerance),
            options=_engine_options(options or ()),
            memory=memory,
        )

    @property
    def link(self) -> Net:
        """The links that ``net`` names."""
        return parse_net(self.net)

    @property
    def engine_options(self) -> dict[str, Any]:
        """Fields of ``overlap.ShardOptions``."""
        return dict(map(parse_option, self.options))

    @property
    def param_dtype(self) -> torch.dtype:
        """As torch has it."""
        return torch.float32 if self.dtype == "fp32" else torch.bfloat16

    def to_json(self) -> str:
        """Return the settings as one line, fit for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild what ``to_json`` wrote."""
        given: dict[str, Any] = json.loads(text)
        return cls(**{**given, **{name: tuple(given[name]) for name in ("contenders", "options")}})


def _with_floor(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((FLOOR, *names("contenders", given, tuple(CONTENDERS)))))


def _engine_options(given: Sequence[str]) -> tuple[str, ...]:
    parsed = dict(map(parse_option, given))
    options_from(parsed)
    for name in SAID_BY_NAMES & parsed.keys():
        cure = "choose contenders and --dtype"
        raise ConfigError(message("--set", f"leave {', '.join(sorted(SAID_BY_NAMES))} alone", name, cure))
    return tuple(given)
