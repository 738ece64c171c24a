"""A transformer block's gradients, and where a bucket of eight ranks holds them: matrices and vectors mixed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from overlap.bench import memory
from overlap.ops import PackSlot
from overlap.shard.layout import lay_out

WORLD = 8


@dataclass(frozen=True)
class Parcel:
    """Shapes, and their slots in a bucket ``[WORLD, width]``."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    slots: tuple[PackSlot, ...]
    width: int

    @property
    def numel(self) -> int:
        """Elements of all tensors, without padding."""
        return sum(slot.numel for slot in self.slots)

    @property
    def ends(self) -> tuple[int, ...]:
        """For each slot, the column where the next one begins."""
        return (*(slot.offset for slot in self.slots[1:]), self.width)

    def tight(self) -> "Parcel":
        """Return the same tensors without space between the slots."""
        offsets = list(accumulate((slot.chunk for slot in self.slots), initial=0))
        slots = tuple(
            PackSlot(offset, slot.chunk, slot.numel) for slot, offset in zip(self.slots, offsets, strict=False)
        )
        return Parcel(self.name, self.shapes, slots, offsets[-1])

    def tensors(self, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Return fresh normal values."""
        return [memory.randn(math.prod(shape), dtype, device).view(shape) for shape in self.shapes]

    def bucket(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a bucket of fresh normal values."""
        return memory.randn(WORLD * self.width, dtype, device).view(WORLD, self.width)

    def pieces(self, tensors: Sequence[Tensor], bucket: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return views of what belongs together: stretches of the tensors, stretches of the bucket's rows."""
        inside, outside = [], []
        for tensor, slot in zip(tensors, self.slots, strict=True):
            for row, stretch in enumerate(torch.split(tensor.view(-1), slot.chunk)):
                inside.append(stretch)
                outside.append(bucket[row].narrow(0, slot.offset, stretch.numel()))
        return inside, outside


def transformer_block(elements: int) -> Parcel:
    """Return the twelve parameters of a block with about ``elements`` elements: 12 d^2 + 13 d."""
    d = max(round(math.sqrt(elements / 12) / WORLD), 1) * WORLD
    matrices = ((3 * d, d), (d, d), (4 * d, d), (d, 4 * d))
    shapes = [shape for matrix in matrices for shape in (matrix, matrix[:1])] + [(d,)] * 4
    return _parcel("transformer block", tuple(shapes))


def one_tensor(elements: int) -> Parcel:
    """Return one matrix of about ``elements`` elements."""
    columns = 2 ** (elements.bit_length() // 2)
    rows = max(elements // columns // WORLD, 1) * WORLD
    return _parcel("one tensor", ((rows, columns),))


def _parcel(name: str, shapes: tuple[tuple[int, ...], ...]) -> Parcel:
    layout = lay_out(shapes, WORLD)
    slots = tuple(PackSlot(place.offset, place.chunk, place.numel) for place in layout.params)
    return Parcel(name, shapes, slots, layout.shard_numel)
