"""Scale and cast a rank-major bucket back into many tensors, in one launch."""

import triton
import triton.language as tl

from overlap.kernels.convert import narrow, widen
from overlap.kernels.regions import region_of, strided_offsets


@triton.jit(do_not_specialize=["width"])
def unpack_kernel(tensors, regions, blocks, bucket, width: tl.int64, scale, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    """Write the elements of each region's tensor, one BLOCK of one row per program.

        program_id(0) ->   0     1     2    |  3     4
        row 0           | full |full |tail --| full |tail --|     program_id(1) = row
        row 1           | full |tail   none  | full | none  |     -- padding, which no tensor receives
                         region 0             region 1

    Tables and grid are those of pack_kernel: both directions of a bucket share what is on the device.

    Traffic per element: read the bucket, write the tensor (2 or 4 bytes each).
    """
    region, tensor, begin = region_of(tensors, regions, blocks)
    row = tl.program_id(1).to(tl.int64)
    chunk = tl.load(region + 2)
    address = tl.load(tensor)
    code = tl.load(tensor + 1)
    first = row * chunk
    held = tl.minimum(tl.load(region + 3) - first, chunk) - begin
    if (address == 0) | (held <= 0):
        return
    target = first + begin
    source = row * width + tl.load(region) + begin
    view = tl.load(tensor + 2)
    if code == 0:
        _unpack_block(
            address.to(tl.pointer_type(tl.float32)), target, tensors, view, bucket, source, held, scale, SCALED, BLOCK
        )
    elif code == 1:
        _unpack_block(
            address.to(tl.pointer_type(tl.bfloat16)), target, tensors, view, bucket, source, held, scale, SCALED, BLOCK
        )
    else:
        _unpack_block(
            address.to(tl.pointer_type(tl.float16)), target, tensors, view, bucket, source, held, scale, SCALED, BLOCK
        )


@triton.jit
def _unpack_block(out, target, tensors, view, bucket, source, held, scale, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    """``held`` elements of ``bucket[source:]`` to ``out``, from its element ``target`` on."""
    lanes = tl.arange(0, BLOCK)
    values = bucket + source
    places = out + target
    misaligned = (values.to(tl.int64) | places.to(tl.int64)) & 15
    if (held >= BLOCK) & (misaligned == 0) & (view == 0):
        # Known alignment and no mask: 16-byte vectors.
        values = tl.multiple_of(values, 16)
        places = tl.multiple_of(places, 16)
        tl.store(places + lanes, _converted(tl.load(values + lanes), scale, out.dtype.element_ty, SCALED))
    else:
        inside = lanes < held
        elements = target + lanes
        if view != 0:
            elements = strided_offsets(tensors + view, elements)
        value = tl.load(values + lanes, mask=inside)
        tl.store(out + elements, _converted(value, scale, out.dtype.element_ty, SCALED), mask=inside)


@triton.jit
def _converted(value, scale, dtype: tl.constexpr, SCALED: tl.constexpr):
    """Without a factor, a value of the same dtype keeps its bits."""
    if SCALED:
        return narrow(widen(value) * scale, dtype)
    elif value.dtype == dtype:
        return value
    else:
        return narrow(widen(value), dtype)
