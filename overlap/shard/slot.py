"""Slots: memory for one unit's full parameters, allocated once, refilled in place.

Views of a slot are kept by autograd between forward and backward (``F.linear`` saves ``w.t()``), so a unit never
changes its slot while a graph may hold one. Gathers write through an alias with a version counter of its own: refilling
with the same values is no in-place change that autograd must refuse. What guards against refilling too early is the
plan, proved by ``schedule.validate``, and NaN poison in debug mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

ALIGN_BYTES = 256


class Slot:
    """Bytes that hold one unit at a time."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        # Zeros: padding is never gathered into by anyone, and NaN garbage must not look like poison.
        self.buffer = torch.zeros(nbytes, dtype=torch.uint8, device=device)

    @property
    def nbytes(self) -> int:
        """Size of the slot."""
        return self.buffer.untyped_storage().nbytes()

    def view(self, start_bytes: int, numel: int, dtype: torch.dtype) -> Tensor:
        """A typed 1-D view ``[numel]`` from a byte offset, with a version counter of its own."""
        size = numel * dtype.itemsize
        return self.buffer.narrow(0, start_bytes, size).view(dtype).data


def aligned_bytes(nbytes: int) -> int:
    """Round up to where the next flat of a slot may start."""
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
