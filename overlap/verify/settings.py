"""A run of the command ``overlap verify`` as data, fit for the command line of a rank."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch

from overlap.errors import ConfigError, message

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WORDS: dict[str, object] = {**DTYPES, "none": None, "true": True, "false": False}
"""Values of ``--set`` that are no numbers."""


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """Everything that decides a run."""

    target: str
    """Where the model factory is: ``FILE.py:name`` or ``module:name``."""
    batches: str = "batches"
    """A name there, or a place of its own written alike."""
    loss: str | None = None
    """Likewise; None takes a function ``loss`` there, else the default loss."""
    ranks: int = 2
    """Processes."""
    stage: int = 3
    """What is sharded, 0 to 3."""
    unit: str | None = None
    """A module class there, a name pattern, or a size in parameters; None makes the model one unit."""
    steps: int | None = None
    """Optimizer steps; None takes as many as a sequence of batches gives, else 4."""
    param_dtype: str | None = None
    """Compute dtype: fp32, bf16 or fp16; None keeps the parameters' own."""
    optimizer: str = "sgd"
    """``sgd``, ``adamw``, or a name there."""
    lr: float | None = None
    """Learning rate of a named optimizer."""
    rtol: float | None = None
    """Relative tolerance; None takes the dtypes'."""
    atol: float | None = None
    """Absolute tolerance."""
    seed: int = 0
    """Of all random numbers: of the factory, of the batches' module and of forward."""
    options: tuple[str, ...] = ()
    """Further engine options, ``NAME=VALUE`` each."""
    json: str | None = None
    """File that rank 0 writes the report to."""

    def __post_init__(self) -> None:
        """Refuse what needs no look at the user's code."""
        if not self.ranks > 0:
            raise ConfigError(message("ranks", "be positive", self.ranks, "give a larger value"))
        if self.param_dtype is not None and self.param_dtype not in DTYPES:
            rule = f"be one of {', '.join(DTYPES)}"
            raise ConfigError(message("param_dtype", rule, self.param_dtype, "choose one of these"))
        self.shard_options()

    def shard_options(self) -> dict[str, Any]:
        """Arguments of ``overlap.shard`` but for the unit."""
        options: dict[str, Any] = {"stage": self.stage, **dict(map(parse_option, self.options))}
        if self.param_dtype is not None:
            options["param_dtype"] = DTYPES[self.param_dtype]
        return options

    def to_json(self) -> str:
        """Return the settings as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild what ``to_json`` wrote."""
        given = json.loads(text)
        return cls(**{**given, "options": tuple(given["options"])})


def parse_option(option: str) -> tuple[str, Any]:
    """``prefetch=2`` -> ``("prefetch", 2)``.

    Raises:
        ConfigError: it is not ``NAME=VALUE``.
    """
    name, equals, text = option.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name:
        raise ConfigError(message("--set", "be NAME=VALUE", option, "write e.g. --set prefetch=2"))
    return name, _value(text.strip())


def _value(text: str) -> object:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
