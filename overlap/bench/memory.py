"""Buffers that do not get into each other's way: ours and the peers' alike.

An allocator that hands out whole pages places buffers of one size at one distance. For some sizes, 32M floats among
them, lines of all buffers at the same index then compete for the same place of the first cache; AMD's way predictor
makes that twice the time (docs/lab-notes.md). A shard in training has no such size, so here each buffer starts
a little further into its memory than the one before.
"""

from itertools import cycle

import torch
from torch import Tensor

STEP_BYTES, STEPS = 17_472, 16
"""273 cache lines: neither the line's place in a page nor the page's place in the cache is the same for two buffers."""

_turns = cycle(range(1, STEPS + 1))


def empty(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 1-D memory that nothing was written to."""
    shift = next(_turns) * STEP_BYTES // dtype.itemsize
    return torch.empty(elements + shift, dtype=dtype, device=device)[shift:]


def randn(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return normal values, drawn in fp32 and rounded to ``dtype``."""
    values = empty(elements, dtype, device)
    return values.normal_() if dtype == torch.float32 else values.copy_(torch.randn(elements, device=device))


def copy(source: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the values of a 1-D tensor in memory of their own."""
    return empty_like(source, dtype).copy_(source)


def empty_like(source: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return 1-D memory for as many elements."""
    return empty(source.numel(), source.dtype if dtype is None else dtype, source.device)
