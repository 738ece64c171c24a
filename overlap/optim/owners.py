"""Which rank works on which whole matrix, and when: pure arithmetic, no torch.

Matrices are sorted by cost and dealt out in turns of one per rank, so that ranks have equal work in every turn; the
direction alternates, so that they have equal work in all of them. Turns are joined to rounds, one exchange each, up to
a size: what is small is not sent piece by piece, what is large does not need memory for all of it at once.

    cost   90 80 70 | 60 50 40 | 30         3 ranks
    rank    0  1  2 |  2  1  0 |  0         90 + 40 + 30, 80 + 50, 70 + 60

A round's results travel as one row per rank, with a matrix at ``offset`` in its owner's row.

Source: Keller Jordan's distributed Muon (2024), which sorts by size and deals out one per rank and turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from overlap.shard.layout import aligned


@dataclass(frozen=True, slots=True)
class Dealt:
    """One matrix of a round.

    Attributes:
        index: which one of those that were dealt out.
        owner: rank that works on it.
        offset: of the result in its owner's row, in elements.
        numel: elements.
    """

    index: int
    owner: int
    offset: int
    numel: int


Round = tuple[Dealt, ...]
"""Matrices of one exchange."""

MatrixShape = tuple[int, ...]
"""``(rows, columns)``, or ``(count, rows, columns)`` of a stack of matrices."""


def cost_of(shape: MatrixShape) -> int:
    """Work of one product ``X @ X.T`` of the wide matrix, in multiply-adds; a stack's is that of all in it."""
    return math.prod(shape) * min(shape[-2:])


def deal(shapes: Sequence[MatrixShape], world: int, room: int) -> list[Round]:
    """Deal whole matrices out to ranks. The same on all ranks that ask with the same arguments.

    Args:
        shapes: of the matrices.
        world: ranks.
        room: elements that a round may have, unless a single turn has more.
    """
    order = sorted(range(len(shapes)), key=lambda index: -cost_of(shapes[index]))
    rounds: list[list[tuple[int, int]]] = []
    left = 0
    for number, turn in enumerate(order[start : start + world] for start in range(0, len(order), world)):
        ranks = range(world) if number % 2 == 0 else range(world - 1, -1, -1)
        size = sum(math.prod(shapes[index]) for index in turn)
        if not rounds or size > left:
            rounds.append([])
            left = room
        left -= size
        rounds[-1] += zip(turn, ranks, strict=False)
    return [_placed(dealt, shapes) for dealt in rounds]


def _placed(dealt: Sequence[tuple[int, int]], shapes: Sequence[MatrixShape]) -> Round:
    ends: dict[int, int] = {}
    placed = []
    for index, owner in dealt:
        offset, numel = ends.get(owner, 0), math.prod(shapes[index])
        placed.append(Dealt(index, owner, offset, numel))
        ends[owner] = aligned(offset + numel)
    return tuple(placed)


def row_width(dealt: Round) -> int:
    """Elements of one rank's row of results: as many as the rank with the most has."""
    return max(aligned(each.offset + each.numel) for each in dealt)
