"""Tables of addresses and layouts on the device: sent when they change, through pinned memory, never waited for."""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from overlap.ops.slots import PackSlot, Region, regions
from overlap.ops.strides import merged

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The dtype codes of kernels/regions.py."""

STRIDED_LIMIT = 1 << 31
"""Elements of a strided tensor must stay below: kernels divide element numbers in 32 bits."""


@lru_cache(maxsize=4096)
def upload(words: tuple[int, ...], device: torch.device, stream: int) -> Tensor:
    """Return ``words`` as int64 on ``device``; sent again only when they change.

    One copy per ``stream``: the tensor is filled in order with the stream of its first use, and no other
    stream waits for it.
    """
    host = torch.tensor(words, dtype=torch.int64, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


class Layout(NamedTuple):
    """One bucket's tables on the device, which pack and unpack share."""

    order: tuple[Region, ...]
    regions: Tensor
    """The table ``regions`` of kernels/regions.py."""
    blocks: Tensor
    """The table ``blocks``."""
    row_blocks: int
    """Blocks of one row."""


@lru_cache(maxsize=1024)
def layout(
    slots: tuple[PackSlot, ...], world: int, width: int, block: int, device: torch.device, stream: int
) -> Layout:
    """Return the tables of a bucket; sent once per layout and stream."""
    order = regions(slots, world, width)
    region_words: list[int] = []
    block_words: list[int] = []
    for index, region in enumerate(order):
        region_words.extend((region.offset, region.end, region.chunk, region.numel))
        for begin in range(0, region.end - region.offset, block):
            block_words.extend((index, begin))
    blocks = upload(tuple(block_words), device, stream)
    return Layout(order, upload(tuple(region_words), device, stream), blocks, len(block_words) // 2)


def tensor_table(
    tensors: Sequence[Tensor | None], order: tuple[Region, ...], device: torch.device, stream: int
) -> Tensor:
    """Return the table ``tensors`` of kernels/regions.py: three words per region, then the dimensions of views."""
    words, dimensions = array("q"), array("q")
    for region in order:
        tensor = tensors[region.grad] if region.grad >= 0 else None
        if tensor is None or region.numel == 0:
            words.extend((0, 0, 0))
            continue
        view = 0
        if not tensor.is_contiguous():
            view = 3 * len(order) + len(dimensions)
            dimensions.extend(dimension_words(tensor.shape, tensor.stride()))
        words.extend((tensor.data_ptr(), CODES[tensor.dtype], view))
    return upload((*words, *dimensions), device, stream)


@lru_cache(maxsize=4096)
def dimension_words(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``(count, size, stride, size, stride, ...)``, innermost first."""
    dimensions = merged(shape, strides)
    return (len(dimensions), *(word for dimension in reversed(dimensions) for word in dimension))
