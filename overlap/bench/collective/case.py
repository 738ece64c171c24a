"""One collective of one size, as every rank has it before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from overlap.bench.collective.names import NO_ROOT, REDUCING, Layout
from overlap.bench.collective.values import Values
from overlap.comm.volume import Collective


@dataclass(frozen=True, kw_only=True)
class Case:
    """One collective of one size."""

    op: Collective
    count: int
    """As in ``sizes.count_of``."""
    world: int
    rank: int
    wire: torch.dtype
    """Of what is sent."""
    out: torch.dtype
    """Of the result."""
    layout: Layout
    pieces: int
    redop: str
    root: int = NO_ROOT
    """Of a broadcast or reduce."""

    @property
    def can_be_in_place(self) -> bool:
        """Whether result and input may share memory."""
        return self.op != "all_to_all" and self.layout != "staged" and self.out == self.wire

    def values(self, repetition: int) -> Values:
        """The values of one checked call."""
        redop = self.redop if self.op in REDUCING else None
        return Values(self.world, self.wire, self.out, redop, repetition)
