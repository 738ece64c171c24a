"""Where every element lives: pure arithmetic, no torch.

A parameter of R rows over N ranks is split as ``torch.chunk`` (and so DTensor) splits it: ``ceil(R / N)`` rows each,
fewer on the last. Every rank keeps room for the full count, so that all sizes are equal on all ranks:

    shard (this rank)   | p0 rows |pad| p1 rows |pad| ...            offset, chunk        same in master, grad, m, v
    slot  (full)        | p0: rank 0, rank 1, ... |pad| p1: ...      full_offset, N * chunk
    bucket [N, S]       row r = what the shard of rank r looks like

The tail padding of a parameter lies behind its last row in the slot, so that the full tensor is contiguous there.

A large parameter with too few rows (a few stacked experts) is split along another dimension d. It is stored with d
moved to the front, so that everything above holds for it too: its "rows" are slices along d, and compute uses a strided
view. Behind that dimension come the others in the order that they had in memory: compute sees a channels-last or a
transposed weight with the strides it came with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ALIGN = 128
"""Elements between aligned starts: 256 bytes for 2-byte dtypes, more for wider ones."""
LEAST_ALIGN = 8
"""As many at least: 16 bytes for 2-byte dtypes, which is what a vector load takes."""


@dataclass(frozen=True, slots=True)
class ParamLayout:
    """One parameter in a flat.

    Attributes:
        shape: full shape.
        order: its dimensions as they are stored; the first is the one that is split.
        rows: size of that dimension (1 for a scalar).
        row_numel: elements per row.
        chunk_rows: rows a rank keeps room for.
        offset: start in the shard, in elements; a chunk below ``ALIGN`` starts at a multiple of its own size, rounded
            up to a power of two: among many ranks, where chunks are small, they would be lost in padding.
        full_offset: start in the slot, in elements.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    rows: int
    row_numel: int
    chunk_rows: int
    offset: int
    full_offset: int

    @property
    def dim(self) -> int:
        """The dimension that is split."""
        return self.order[0] if self.order else 0

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Full shape in the order of storage."""
        return tuple(self.shape[dim] for dim in self.order)

    @property
    def places(self) -> tuple[int, ...]:
        """Where each dimension is stored: the inverse of ``order``."""
        return tuple(self.order.index(dim) for dim in range(len(self.order)))

    @property
    def strides(self) -> tuple[int, ...]:
        """Of the full parameter, in elements."""
        stored = self.stored_shape
        return tuple(math.prod(stored[place + 1 :]) for place in self.places)

    @property
    def numel(self) -> int:
        """Elements of the full parameter."""
        return self.rows * self.row_numel

    @property
    def chunk(self) -> int:
        """Elements a rank keeps room for, padding included."""
        return self.chunk_rows * self.row_numel

    def rows_of(self, rank: int) -> tuple[int, int]:
        """First row and number of rows that a rank owns."""
        start = min(rank * self.chunk_rows, self.rows)
        return start, min(self.chunk_rows, self.rows - start)


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Parameters back to back over ``world`` ranks; ``world`` 1 means replicated.

    Attributes:
        world: ranks that share the parameters.
        params: in order.
        shard_numel: elements of one rank's shard, padding included.
        full_numel: elements of all full parameters with their padding.
    """

    world: int
    params: tuple[ParamLayout, ...]
    shard_numel: int
    full_numel: int

    @property
    def numel(self) -> int:
        """Elements of the parameters themselves."""
        return sum(param.numel for param in self.params)


def lay_out(
    shapes: Sequence[tuple[int, ...]],
    world: int,
    dims: Sequence[int] = (),
    orders: Sequence[tuple[int, ...]] = (),
) -> FlatLayout:
    """Place parameters of the given shapes back to back.

    Args:
        shapes: full shapes, in order.
        world: ranks to split over; 1 keeps parameters whole.
        dims: dimension to split, per parameter; 0 for all when left out.
        orders: dimensions from the outermost in memory to the innermost, per parameter; ascending when left out.
    """
    params, offset, full_offset = [], 0, 0
    orders = orders or [tuple(range(len(shape))) for shape in shapes]
    for shape, dim, order in zip(shapes, dims or [0] * len(shapes), orders, strict=True):
        rows = shape[dim] if shape else 1
        row_numel = math.prod(shape[:dim]) * math.prod(shape[dim + 1 :])
        chunk_rows = -(-rows // world)
        stored = (dim, *(other for other in order if other != dim)) if shape else ()
        chunk = chunk_rows * row_numel
        offset = aligned(offset, natural_alignment(chunk))
        params.append(ParamLayout(shape, stored, rows, row_numel, chunk_rows, offset, full_offset))
        offset += chunk
        full_offset = aligned(full_offset + chunk * world)
    return FlatLayout(world, tuple(params), aligned(offset, LEAST_ALIGN), full_offset)


def aligned(numel: int, align: int = ALIGN) -> int:
    """Round up to a multiple."""
    return -(-numel // align) * align


def natural_alignment(numel: int) -> int:
    """Where so many elements may start: at a multiple of a power of two."""
    return min(ALIGN, max(LEAST_ALIGN, 1 << max(numel - 1, 0).bit_length()))


def memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions from the outermost in memory to the innermost; ascending for what does not lie back to back."""
    order = tuple(sorted(range(len(shape)), key=lambda dim: -strides[dim]))
    sizes = [(strides[dim], shape[dim]) for dim in order if shape[dim] > 1]
    expected = 1
    for stride, size in reversed(sizes):
        if stride != expected:
            return tuple(range(len(shape)))
        expected *= size
    return order


def split_dim(
    shape: tuple[int, ...], world: int, replicate_max_numel: int, order: tuple[int, ...] | None = None
) -> int | None:
    """The dimension that a parameter is split along: the first in ``order`` that leaves no rank without a slice.

    None for what stays whole: scalars, small parameters, and those without such a dimension.
    """
    if math.prod(shape) <= replicate_max_numel:
        return None
    dims = range(len(shape)) if order is None else order
    fits = (dim for dim in dims if (world - 1) * -(-shape[dim] // world) < shape[dim])
    return next(fits, None)


def pieces(layout: FlatLayout, order: Sequence[int], max_numel: int) -> list[list[int]]:
    """Cut a flat into buckets: runs of consecutive parameters of at most ``max_numel`` full elements.

    A parameter larger than that is a bucket of its own. ``order`` filters which parameters take part (those with
    gradients), ascending.
    """
    cut: list[list[int]] = []
    size = 0
    for index in order:
        numel = layout.params[index].chunk * layout.world
        if cut and size + numel <= max_numel and cut[-1][-1] == index - 1:
            cut[-1].append(index)
            size += numel
        else:
            cut.append([index])
            size = numel
    return cut
