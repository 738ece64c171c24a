"""The dimensions of a tensor that is not contiguous, as the kernels walk them (``struct Dim`` of csrc/cuda)."""

from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from overlap.ops import strides as plain


class Dim(NamedTuple):
    """One dimension; ``n // size == (n * magic >> 64) >> shift`` for every n below 2^63."""

    size: int
    stride: int
    magic: int
    shift: int


def dims_of(tensor: Tensor | None) -> tuple[Dim, ...]:
    """Return the dimensions, outermost first, as few as strides allow; none where the elements lie in order."""
    if tensor is None or tensor.is_contiguous():
        return ()
    return merged(tuple(tensor.shape), tensor.stride())


@lru_cache(maxsize=4096)
def merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Dim, ...]:
    """Return the dimensions of a view, as few as strides allow; none where the elements lie in order."""
    kept = plain.merged(shape, strides)
    in_order = len(kept) == 0 or (len(kept) == 1 and kept[0][1] == 1)
    return () if in_order else tuple(_dim(size, stride) for size, stride in kept)


def _dim(size: int, stride: int) -> Dim:
    """Granlund and Montgomery 1994: with ``2^shift < size <= 2^(shift + 1)``."""
    shift = (size - 1).bit_length() - 1
    return Dim(size, stride, -(-(1 << (64 + shift)) // size), shift)
