"""``pack`` and ``unpack`` in C++ (csrc/pack.cpp, csrc/unpack.cpp)."""

from array import array
from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from overlap import _native
from overlap.ops import check
from overlap.ops.native.refusal import unreadable
from overlap.ops.slots import PackSlot, regions
from overlap.ops.threads import get_num_threads

_REGION_WORDS = 5
"""``struct Region`` of csrc/ops.h: tensor, offset, end, chunk, numel."""


def pack(
    grads: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...], scale: float, accumulate: bool, /
) -> None:
    """See ``overlap.ops.pack``."""
    if bucket.dim() == 2 and isinstance(slots, tuple) and _packed(grads, bucket, slots, scale, accumulate):
        return
    check.pack(grads, bucket, slots, scale, accumulate)
    # More dimensions than C++ walks are left after merging: one copy makes them few.
    flat = [None if grad is None else grad.contiguous() for grad in grads]
    if not _packed(flat, bucket, slots, scale, accumulate):
        raise unreadable("pack")


def _packed(
    grads: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...], scale: float, accumulate: bool
) -> bool:
    world, width = bucket.shape
    table, count = _table(slots, world, width)
    threads = get_num_threads()
    return _native.pack(grads, bucket, table, count, len(slots), world, width, scale, accumulate, threads)


def unpack(bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], scale: float, /) -> None:
    """See ``overlap.ops.unpack``."""
    if bucket.dim() == 2 and isinstance(slots, tuple) and _unpacked(bucket, tensors, slots, scale):
        return
    check.unpack(bucket, tensors, slots, scale)
    aside = [None if tensor is None else tensor.new_empty(tensor.shape) for tensor in tensors]
    if not _unpacked(bucket, aside, slots, scale):
        raise unreadable("unpack")
    for tensor, values in zip(tensors, aside, strict=True):
        if tensor is not None and values is not None:
            tensor.copy_(values)


def _unpacked(bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], scale: float) -> bool:
    world, width = bucket.shape
    table, count = _table(slots, world, width)
    return _native.unpack(bucket, tensors, table, count, len(slots), world, width, scale, get_num_threads())


def _table(slots: tuple[PackSlot, ...], world: int, width: int) -> tuple[int, int]:
    """Address and length of the region table."""
    words = _words(slots, world, width)
    return words.buffer_info()[0], len(words) // _REGION_WORDS


@lru_cache(maxsize=1024)
def _words(slots: tuple[PackSlot, ...], world: int, width: int) -> "array[int]":
    words = array("q")
    for region in regions(slots, world, width):
        words.extend(region)
    return words
