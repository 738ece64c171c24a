"""Sizes in bytes, and which of them a scan visits: nccl-tests' flags and its rounding."""

from __future__ import annotations

import re
from collections.abc import Iterator

from overlap.comm.volume import Collective
from overlap.errors import ConfigError, message

ALIGNED_BYTES = 16
"""A rank's part of a tensor is a multiple of this."""

WHOLE: tuple[Collective, ...] = ("all_reduce", "broadcast", "reduce")
"""Every rank has the whole tensor; of others it has a part."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_bytes(name: str, word: str) -> int:
    """Read ``4096``, ``64K``, ``32M`` or ``1G`` (powers of 1024).

    Raises:
        ConfigError: it is none of these.
    """
    matched = re.fullmatch(r"([0-9]+)([KMG]?)(I?B)?", word.strip().upper())
    if matched is None or int(matched[1]) == 0:
        raise ConfigError(message(name, "be bytes such as 4096, 64K, 32M or 1G", word, "give a size so"))
    return int(matched[1]) * _UNITS[matched[2]]


def parse_numbers(name: str, text: str) -> tuple[int, ...]:
    """Read ``1,2,4``.

    Raises:
        ConfigError: it is no list of numbers.
    """
    numbers = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in numbers):
        raise ConfigError(message(name, "be numbers with commas between them", text, "write e.g. 1,2,4"))
    return tuple(dict.fromkeys(map(int, numbers)))


def scan(first: int, last: int, step: int, factor: int | None) -> Iterator[int]:
    """Sizes from ``first`` to ``last``, by a factor, else by a step in bytes."""
    size = first
    while size <= last:
        yield size
        size = size * factor if factor is not None else size + step


def count_of(op: Collective, nbytes: int, itemsize: int, world: int) -> int:
    """Elements that nccl-tests calls count: of the whole tensor where every rank has it, else of one rank's part of it.

    A part is rounded down to 16 bytes, but never to nothing.
    """
    if op in WHOLE:
        return max(1, nbytes // itemsize)
    aligned = ALIGNED_BYTES // itemsize
    return max(aligned, nbytes // itemsize // world // aligned * aligned)


def bytes_of(op: Collective, count: int, itemsize: int, world: int) -> int:
    """Bytes of the whole tensor."""
    return count * itemsize * (1 if op in WHOLE else world)


def show_bytes(nbytes: float) -> str:
    """``70.7 MiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}" if nbytes < 1000 * factor else f"{nbytes / factor:,.0f} {unit}"
    return f"{nbytes:.0f} B"
