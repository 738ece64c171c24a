"""The C++ face, for CPU tensors. The only importer of ``overlap._native``.

Tensors go over as address and size; dispatch.py has checked them, and the arguments of each call keep the
memory alive until it returns. The GIL is released inside.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from overlap import _native
from overlap.ops.coefficients import AdamWCoefficients
from overlap.ops.slots import PackSlot, regions
from overlap.ops.threads import get_num_threads

_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""``enum DType`` of csrc/convert.h."""


def pack(
    grads: Sequence[Tensor | None],
    bucket: Tensor,
    slots: tuple[PackSlot, ...],
    *,
    scale: float,
    accumulate: bool,
) -> None:
    """See ``overlap.ops.pack``."""
    world, width = bucket.shape
    table = _region_table(slots, world, width)
    sources = array("q")
    for region in regions(slots, world, width):
        grad = grads[region.grad] if region.grad >= 0 else None
        sources.extend((0, 0) if grad is None else (grad.data_ptr(), _CODES[grad.dtype]))
    _native.pack(
        _address(table), _address(sources), len(table) // 4,
        bucket.data_ptr(), _CODES[bucket.dtype], world, width, scale, accumulate, get_num_threads(),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _region_table(slots: tuple[PackSlot, ...], world: int, width: int) -> "array[int]":
    """``struct Region`` of csrc/ops.h, four words each."""
    words = array("q")
    for region in regions(slots, world, width):
        words.extend((region.offset, region.end, region.chunk, region.numel))
    return words


def _address(words: "array[int]") -> int:
    return words.buffer_info()[0]


def adamw(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: AdamWCoefficients,
    *,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
) -> None:
    """See ``overlap.ops.adamw``."""
    if skip is not None and skip.item() != 0:
        return
    factor = 1.0 if grad_scale is None else grad_scale.item()
    shard_code, shard_address = (0, 0) if shard is None else (_CODES[shard.dtype], shard.data_ptr())
    _native.adamw(
        master.data_ptr(), exp_avg.data_ptr(), exp_avg_sq.data_ptr(), _CODES[grad.dtype], grad.data_ptr(),
        shard_code, shard_address, master.numel(), *coefficients,
        -factor if maximize else factor, get_num_threads(),
    )  # fmt: skip


def grad_norm(grad: Tensor, out: Tensor, *, accumulate: bool) -> None:
    """See ``overlap.ops.grad_norm``."""
    _native.grad_norm(_CODES[grad.dtype], grad.data_ptr(), grad.numel(), out.data_ptr(), accumulate, get_num_threads())


def reduce_sum(rows: Sequence[Tensor], out: Tensor, *, scale: float, accumulate: bool) -> None:
    """See ``overlap.ops.reduce_sum``."""
    addresses = array("q", [row.data_ptr() for row in rows])
    _native.reduce_sum(
        _CODES[rows[0].dtype], _address(addresses), len(rows), _CODES[out.dtype], out.data_ptr(), out.numel(),
        scale, accumulate, get_num_threads(),
    )  # fmt: skip
