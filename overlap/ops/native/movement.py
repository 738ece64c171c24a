"""``pack`` and ``unpack`` in C++ (csrc/pack.cpp, csrc/unpack.cpp)."""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from overlap import _native
from overlap.ops import check
from overlap.ops.native.holding import hold
from overlap.ops.native.refusal import unreadable
from overlap.ops.slots import PackSlot, regions
from overlap.ops.threads import get_num_threads


def pack(
    grads: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...], scale: float, accumulate: bool, /
) -> None:
    """See ``overlap.ops.pack``."""
    if _packed(grads, bucket, slots, scale, accumulate):
        return
    check.pack(grads, bucket, slots, scale, accumulate)
    # More dimensions than C++ walks are left after merging: one copy makes them few.
    flat = [None if grad is None else grad.contiguous() for grad in grads]
    if not _packed(flat, bucket, slots, float(scale), accumulate):
        raise unreadable("pack")


def _packed(
    grads: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...], scale: float, accumulate: bool
) -> bool:
    layout, held = _layout_of(bucket, slots), hold(grads)
    return layout is not None and _native.pack(held, bucket, layout.words, scale, accumulate, get_num_threads())


def unpack(bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], scale: float, /) -> None:
    """See ``overlap.ops.unpack``."""
    if _unpacked(bucket, tensors, slots, scale):
        return
    check.unpack(bucket, tensors, slots, scale)
    aside = [None if tensor is None else tensor.new_empty(tensor.shape) for tensor in tensors]
    if not _unpacked(bucket, aside, slots, float(scale)):
        raise unreadable("unpack")
    with torch.no_grad():
        for tensor, values in zip(tensors, aside, strict=True):
            if tensor is not None and values is not None:
                tensor.copy_(values)


def _unpacked(bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], scale: float) -> bool:
    layout, held = _layout_of(bucket, slots), hold(tensors)
    return layout is not None and _native.unpack(bucket, held, layout.words, scale, get_num_threads())


class _Layout(NamedTuple):
    """Regions as C++ reads them, ``struct Region`` of csrc/ops.h: tensor, offset, end, chunk, numel."""

    table: "array[int]"
    """Kept for its memory."""
    words: tuple[int, int, int, int, int]
    """Address of the table, regions in it, slots, world, width."""


def _layout_of(bucket: Tensor, slots: tuple[PackSlot, ...]) -> _Layout | None:
    """None where the arguments are not of the kind; the caller holds the layout for as long as C++ reads it."""
    if bucket.dim() != 2 or not isinstance(slots, tuple):
        return None
    world, width = bucket.shape
    try:
        return _layout(slots, world, width)
    except TypeError:  # slots that cannot be hashed are none
        return None


@lru_cache(maxsize=1024)
def _layout(slots: tuple[PackSlot, ...], world: int, width: int) -> _Layout:
    tiled = regions(slots, world, width)
    table = array("q", chain.from_iterable(tiled))
    return _Layout(table, (table.buffer_info()[0], len(tiled), len(slots), world, width))
