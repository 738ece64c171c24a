"""The tables of pack and unpack: regions of a bucket, blocks of their columns, and tensors by address."""

import triton
import triton.language as tl

REGION_WORDS = tl.constexpr(4)
"""Words per region in ``regions``: offset, end, chunk, numel (overlap/ops/slots.py)."""
TENSOR_WORDS = tl.constexpr(3)
"""Words per region in ``tensors``: address (0 = no tensor), dtype code (0 fp32, 1 bf16, 2 fp16), and the word of
the same table where its dimensions begin (0 = contiguous)."""
BLOCK_WORDS = tl.constexpr(2)
"""Words per column block in ``blocks``: region index, first column of the block inside the region."""


@triton.jit
def region_of(tensors, regions, blocks):
    """Return ``(region, tensor, begin)``: the table entries of this program's block, and its first column."""
    block = blocks + tl.program_id(0) * BLOCK_WORDS
    index = tl.load(block)
    return regions + index * REGION_WORDS, tensors + index * TENSOR_WORDS, tl.load(block + 1)


@triton.jit
def strided_offsets(dimensions, elements):
    """Return where the row-major ``elements`` (below 2^31) of a strided tensor lie, in elements from its start.

        dimensions: | count | size, stride | size, stride | ...     innermost first, count >= 1

    Divisions are 32 bits wide: the 64-bit ones of a GPU are loops. The outermost dimension needs none.
    """
    outermost = tl.load(dimensions) - 1
    rest = elements.to(tl.uint32)
    offsets = tl.zeros(elements.shape, dtype=tl.int64)
    dimension = 0
    while dimension < outermost:
        size = tl.load(dimensions + 1 + 2 * dimension).to(tl.uint32)
        outer = rest // size
        offsets += (rest - outer * size).to(tl.int64) * tl.load(dimensions + 2 + 2 * dimension)
        rest = outer
        dimension += 1
    return offsets + rest.to(tl.int64) * tl.load(dimensions + 2 + 2 * outermost)
