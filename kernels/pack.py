"""Flatten, scale and cast many gradients into one rank-major bucket, in one launch."""

import triton
import triton.language as tl

from overlap.kernels.convert import narrow, widen
from overlap.kernels.regions import region_of, strided_offsets


@triton.jit(do_not_specialize=["width"])
def pack_kernel(
    tensors, regions, blocks, bucket, width: tl.int64, scale, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr
):
    """Fill columns ``[offset, end)`` of each region, one BLOCK of one row per program.

        program_id(0) ->   0     1     2    |  3     4
        row 0           | full |full |tail 0| full |tail 0|     program_id(1) = row
        row 1           | full |tail 0 zeros| full |zeros |
                         region 0             region 1

    Row r of a region holds elements ``[r * chunk, r * chunk + held)`` of its gradient, then zeros. Elements of
    strided gradients are found by division, in the masked branch.

    Traffic per element: read the gradient (2 or 4 bytes), write the bucket (read it too with ACCUMULATE).
    """
    region, tensor, begin = region_of(tensors, regions, blocks)
    row = tl.program_id(1).to(tl.int64)
    offset = tl.load(region)
    span = tl.load(region + 1) - offset
    chunk = tl.load(region + 2)
    address = tl.load(tensor)
    code = tl.load(tensor + 1)
    first = row * chunk
    held = tl.minimum(tl.maximum(tl.load(region + 3) - first, 0), chunk)
    held = tl.where(address == 0, 0, held)
    source = first + begin
    target = row * width + offset + begin
    view = tl.load(tensor + 2)
    if code == 0:
        _pack_block(
            address.to(tl.pointer_type(tl.float32)), source, tensors, view, bucket, target, held - begin, span - begin,
            scale, ACCUMULATE, BLOCK,
        )  # fmt: skip
    elif code == 1:
        _pack_block(
            address.to(tl.pointer_type(tl.bfloat16)), source, tensors, view, bucket, target, held - begin, span - begin,
            scale, ACCUMULATE, BLOCK,
        )  # fmt: skip
    else:
        _pack_block(
            address.to(tl.pointer_type(tl.float16)), source, tensors, view, bucket, target, held - begin, span - begin,
            scale, ACCUMULATE, BLOCK,
        )  # fmt: skip


@triton.jit
def _pack_block(
    grad, source, tensors, view, bucket, target, held, span, scale, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr
):
    """``held`` elements of ``grad`` from element ``source`` on, then zeros up to ``span``, at ``bucket[target:]``."""
    lanes = tl.arange(0, BLOCK)
    values = grad + source
    places = bucket + target
    misaligned = (values.to(tl.int64) | places.to(tl.int64)) & 15
    if (held >= BLOCK) & (misaligned == 0) & (view == 0):
        # Known alignment and no mask: 16-byte vectors.
        values = tl.multiple_of(values, 16)
        places = tl.multiple_of(places, 16)
        scaled = widen(tl.load(values + lanes)) * scale
        if ACCUMULATE:
            scaled = widen(tl.load(places + lanes)) + scaled
        tl.store(places + lanes, narrow(scaled, bucket.dtype.element_ty))
    else:
        has_value = lanes < held
        elements = source + lanes
        if view != 0:
            elements = strided_offsets(tensors + view, elements)
        scaled = widen(tl.load(grad + elements, mask=has_value, other=0.0)) * scale
        if ACCUMULATE:
            scaled = widen(tl.load(places + lanes, mask=has_value, other=0.0)) + scaled
            tl.store(places + lanes, narrow(scaled, bucket.dtype.element_ty), mask=has_value)
        else:
            filled = tl.where(has_value, scaled, 0.0)
            tl.store(places + lanes, narrow(filled, bucket.dtype.element_ty), mask=lanes < span)
