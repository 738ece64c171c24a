"""Inputs whose reductions are exact in every order, and the count of values that came out wrong.

A value depends on the rank, on its place in the rank's tensor and on the repetition: what is lost, doubled, misplaced
or left from the call before shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

EXACT = {
    torch.float32: 1 << 24,
    torch.bfloat16: 1 << 8,
    torch.float16: 1 << 11,
    torch.float64: 1 << 53,
    torch.int8: (1 << 7) - 1,
    torch.uint8: (1 << 8) - 1,
    torch.int32: (1 << 31) - 1,
    torch.int64: (1 << 63) - 1,
}
"""Largest integer up to which a dtype holds every one."""

MOST = 1 << 20
"""No value is above: products of 2 and indices stay within int64."""

Make = Callable[[int, int, torch.device], Tensor]
"""Values from an index on, so many of them, on a device."""

BLOCK = 1 << 22
"""Elements made at a time: they are made as int64."""

POISON = 0x7F
"""Byte that fills outputs before a call: in floating dtypes it makes numbers that none of ours comes near."""

_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,  # and a division
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


class Values:
    """The values of all ranks for one repetition of one case.

    Args:
        world: ranks.
        wire: dtype of the inputs.
        out: dtype of the results.
        redop: sum, avg, prod, min or max; None where nothing is reduced.
        repetition: tells calls apart.
    """

    def __init__(self, world: int, wire: torch.dtype, out: torch.dtype, redop: str | None, repetition: int) -> None:
        self._world, self._redop, self._repetition = world, redop, repetition
        # Averages are integers, too: NCCL multiplies by 1/n on the way, which need not be exact but rounds to them.
        self.rounds = redop == "avg"
        self._step = world if self.rounds else 1
        self._bounds = [_bound(rank, world, EXACT[wire], EXACT[out], redop) for rank in range(world)]

    def of(self, rank: int, start: int, count: int, device: torch.device) -> Tensor:
        """Values of a rank from index ``start`` on: int64 [count]."""
        index = torch.arange(start, start + count, device=device)
        salt = (rank + 1) * 2246822519 + (self._repetition + 1) * 3266489917
        low, bound = self._bounds[rank]
        return self._step * (low + _mixed(index + salt) % bound)

    def reduced(self, start: int, count: int, device: torch.device) -> Tensor:
        """What the reduction over all ranks gives from index ``start`` on: int64 [count]."""
        assert self._redop is not None
        total = self.of(0, start, count, device)
        for rank in range(1, self._world):
            total = _COMBINE[self._redop](total, self.of(rank, start, count, device))
        return total // self._step


def _mixed(index: Tensor) -> Tensor:
    """Scatter integers, so that near ones are no longer alike (as SplitMix64 does, in 62 bits that stay positive)."""
    positive = (1 << 62) - 1
    mixed = index * -7046029254386353131 & positive
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687 & positive
    return mixed ^ (mixed >> 27)


def _bound(rank: int, world: int, wire: int, out: int, redop: str | None) -> tuple[int, int]:
    """Least value of a rank, and how many there are."""
    if redop == "prod":  # ones and twos; twos on few ranks, or the product leaves int8
        return 1, 2 if rank < int(math.log2(out)) and rank < int(math.log2(wire)) else 1
    if redop == "avg":
        return 0, _averaged(rank, world, wire, out) + 1
    most = min(wire, MOST)
    if redop == "sum":
        most = min(most, out // world)
        if most == 0:  # more ranks than the dtype can count to: some of them give zeros
            most = 1 if rank < out else 0
    return 0, most + 1


def _averaged(rank: int, world: int, wire: int, out: int) -> int:
    """Largest value of a rank, which sends ``world`` times as much, so that the sum is exact.

    The average leaves three bits behind the point: room for a factor 1/n that the dtype does not hold.
    """
    most = min(wire // world, out // world**2, out // (8 * world), MOST // world)
    return most or int(rank < min(out // world, out // 8))


def blocks(count: int) -> Iterator[tuple[int, int]]:
    """Start and length of the blocks that ``count`` elements are made in."""
    return ((start, min(BLOCK, count - start)) for start in range(0, count, BLOCK))


def fill(target: Tensor, make: Make) -> None:
    """Write values into a 1-D tensor, block by block."""
    for start, count in blocks(target.numel()):
        target[start : start + count] = make(start, count, target.device)


def count_wrong(met: Tensor, make: Make, *, rounds: bool = False) -> int:
    """How many elements of a 1-D tensor are not as made; ``rounds``: once they are rounded to integers."""
    wrong = 0
    for start, count in blocks(met.numel()):
        wanted = make(start, count, met.device).to(met.dtype)
        block = met[start : start + count]
        wrong += int(((block.round() if rounds else block) != wanted).sum())
    return wrong


def poison(target: Tensor) -> None:
    """Overwrite an output, so that what a call leaves out shows."""
    target.view(-1).view(torch.uint8).fill_(POISON)
