"""What stays the same from step to step, on the device: regions, dimensions and blocks (csrc/cuda/arguments.h)."""

from array import array
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from overlap.ops.cuda_face.dims import Dim
from overlap.ops.cuda_face.sizes import BLOCK, CAPACITY
from overlap.ops.slots import PackSlot, Region, regions

_REGION_WORDS = 5
_DIM_WORDS = 4


class Part(NamedTuple):
    """One launch: a range of regions, and their blocks."""

    first: int
    region_count: int
    blocks: int
    """Address of the first block."""
    block_count: int


class Tables(NamedTuple):
    """The tables of one bucket layout."""

    words: Tensor
    """int64; the addresses below point into it."""
    regions: int
    dims: int
    parts: tuple[Part, ...]


@lru_cache(maxsize=1024)
def tables(
    slots: tuple[PackSlot, ...],
    world: int,
    width: int,
    dims: tuple[tuple[Dim, ...], ...],
    device: torch.device,
    stream: int,
) -> Tables:
    """Return the tables for tensors with ``dims``, in column order; sent once per layout, device and stream.

    One copy per stream: it is filled in order with the stream of its first use, and no other waits for it. So a
    CUDA graph should be captured after a first, eager step.
    """
    order = regions(slots, world, width)
    blocks = [_block_words(index, region) for index, region in enumerate(order)]
    words = array("Q", chain(_region_words(order, dims), *chain(*dims), *blocks))
    on_device = _upload(words, device)
    base = on_device.data_ptr()
    dims_at = base + 8 * _REGION_WORDS * len(order)
    blocks_at = dims_at + 8 * _DIM_WORDS * sum(map(len, dims))
    return Tables(on_device, base, dims_at, tuple(_parts([len(words) for words in blocks], blocks_at)))


def _region_words(order: tuple[Region, ...], dims: tuple[tuple[Dim, ...], ...]) -> Iterator[int]:
    first_dim = 0
    for region, own in zip(order, dims, strict=True):
        yield from (region.offset, region.end, region.chunk, region.numel, first_dim | len(own) << 32)
        first_dim += len(own)


def _block_words(index: int, region: Region) -> list[int]:
    return [index | number << 32 for number in range(-(-(region.end - region.offset) // BLOCK))]


def _parts(counts: list[int], address: int) -> Iterator[Part]:
    for first in range(0, len(counts), CAPACITY):
        own = counts[first : first + CAPACITY]
        if sum(own) > 0:
            yield Part(first, len(own), address, sum(own))
        address += 8 * sum(own)


def _upload(words: "array[int]", device: torch.device) -> Tensor:
    host = torch.frombuffer(words, dtype=torch.int64)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.clone()
