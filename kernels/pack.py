"""Flatten, scale and cast many gradients into one rank-major bucket, in one launch."""

import triton
import triton.language as tl

from overlap.kernels.convert import narrow, widen

REGION_WORDS = tl.constexpr(4)
"""Words per region in ``regions``: offset, end, chunk, numel (overlap/ops/slots.py)."""
SOURCE_WORDS = tl.constexpr(2)
"""Words per region in ``sources``: address (0 = no gradient), dtype code (0 fp32, 1 bf16, 2 fp16)."""
BLOCK_WORDS = tl.constexpr(2)
"""Words per column block in ``blocks``: region index, first column of the block inside the region."""


@triton.jit(do_not_specialize=["width"])
def pack_kernel(sources, regions, blocks, bucket, width, scale, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr):
    """Fill columns ``[offset, end)`` of each region, one BLOCK of one row per program.

        program_id(0) ->   0     1     2    |  3     4
        row 0           | full |full |tail 0| full |tail 0|     program_id(1) = row
        row 1           | full |tail 0 zeros| full |zeros |
                         region 0             region 1

    Row r of a region holds elements ``[r * chunk, r * chunk + held)`` of its gradient, then zeros.

    Traffic per element: read the gradient (2 or 4 bytes), write the bucket (read it too with ACCUMULATE).
    """
    block = blocks + tl.program_id(0) * BLOCK_WORDS
    row = tl.program_id(1).to(tl.int64)
    index = tl.load(block)
    begin = tl.load(block + 1)
    region = regions + index * REGION_WORDS
    offset = tl.load(region)
    span = tl.load(region + 1) - offset
    chunk = tl.load(region + 2)
    address = tl.load(sources + index * SOURCE_WORDS)
    code = tl.load(sources + index * SOURCE_WORDS + 1)
    first = row * chunk
    held = tl.minimum(tl.maximum(tl.load(region + 3) - first, 0), chunk)
    held = tl.where(address == 0, 0, held)
    source = first + begin
    target = row * width + offset + begin
    if code == 0:
        _pack_block(
            address.to(tl.pointer_type(tl.float32)), source, bucket, target, held - begin, span - begin,
            scale, ACCUMULATE, BLOCK,
        )  # fmt: skip
    elif code == 1:
        _pack_block(
            address.to(tl.pointer_type(tl.bfloat16)), source, bucket, target, held - begin, span - begin,
            scale, ACCUMULATE, BLOCK,
        )  # fmt: skip
    else:
        _pack_block(
            address.to(tl.pointer_type(tl.float16)), source, bucket, target, held - begin, span - begin,
            scale, ACCUMULATE, BLOCK,
        )  # fmt: skip


@triton.jit
def _pack_block(grad, source, bucket, target, held, span, scale, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr):
    """``held`` elements of gradient from ``source``, then zeros up to ``span``, at ``bucket[target:]``."""
    lanes = tl.arange(0, BLOCK)
    values = grad + source
    places = bucket + target
    misaligned = (values.to(tl.int64) | places.to(tl.int64)) & 15
    if (held >= BLOCK) & (misaligned == 0):
        # Known alignment and no mask: 16-byte vectors.
        values = tl.multiple_of(values, 16)
        places = tl.multiple_of(places, 16)
        scaled = widen(tl.load(values + lanes)) * scale
        if ACCUMULATE:
            scaled = widen(tl.load(places + lanes)) + scaled
        tl.store(places + lanes, narrow(scaled, bucket.dtype.element_ty))
    else:
        has_value = lanes < held
        scaled = widen(tl.load(values + lanes, mask=has_value, other=0.0)) * scale
        if ACCUMULATE:
            scaled = widen(tl.load(places + lanes, mask=has_value, other=0.0)) + scaled
            tl.store(places + lanes, narrow(scaled, bucket.dtype.element_ty), mask=has_value)
        else:
            filled = tl.where(has_value, scaled, 0.0)
            tl.store(places + lanes, narrow(filled, bucket.dtype.element_ty), mask=lanes < span)
