"""What can be asked for by name, most of it as nccl-tests calls it, and how a command line is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch

from overlap.comm.volume import Collective
from overlap.errors import ConfigError, message

DTYPES = {
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "half": torch.float16,
    "double": torch.float64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
"""By nccl-tests' names."""

ALIASES = {"fp32": "float", "bf16": "bfloat16", "fp16": "half", "fp64": "double", "all": ",".join(DTYPES)}
COLLECTIVES: tuple[Collective, ...] = (
    *("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"),
)
REDUCING = ("reduce_scatter", "all_reduce", "reduce")
ROOTED = ("broadcast", "reduce")
COALESCED = ("all_gather", "reduce_scatter", "all_reduce")
REDOPS = ("sum", "prod", "min", "max", "avg")
NO_ROOT, ALL_ROOTS = -1, -1
"""In a row, as nccl-tests prints it; in a question, as it reads it."""
TRANSPORTS = ("gloo", "nccl", "overlap")
Layout = Literal["flat", "coalesced", "staged"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def words(texts: Sequence[str]) -> tuple[str, ...]:
    """Split at commas, replace short names, drop doubles."""
    given = [word.strip() for text in texts for word in text.split(",")]
    return tuple(dict.fromkeys(word for each in given for word in ALIASES.get(each, each).split(",")))


def parse_root(word: str) -> int:
    """Read a rank, or ``all``.

    Raises:
        ConfigError: it is neither.
    """
    if word == "all":
        return ALL_ROOTS
    if not word.isdigit():
        raise ConfigError(message("root", "be a rank or all", word, "count from 0"))
    return int(word)
