"""Sum k rows in order and round once: the local half of a reduce-scatter."""

import triton
import triton.language as tl

from overlap.kernels.convert import narrow, widen


@triton.jit(do_not_specialize=["count", "size"])
def reduce_sum_kernel(
    rows, count, like, out, size, scale, ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr
):
    """``out[i] = (rows[0][i] + rows[1][i] + ...) * scale``; ``rows`` is a table of ``count`` addresses.

        program        0        1            last
        rows[0]  |  BLOCK  |  BLOCK  | ... | masked |     added down the rows, in order, in fp32;
        rows[1]  |         |         |     |        |     out may be one of the rows: a program reads
        out      |    v    |    v    |     |   v    |     all of its block before it writes

    Traffic per element: read ``count`` rows, write out (read it too with ACCUMULATE). ``like`` is the first
    row, passed for its dtype; ALIGNED promises that every address is a multiple of 16.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= size:
        _sum_block(rows, count, like, out, scale, offsets, None, ALIGNED, ACCUMULATE, BLOCK)
    else:
        _sum_block(rows, count, like, out, scale, offsets, offsets < size, False, ACCUMULATE, BLOCK)


@triton.jit
def _sum_block(
    rows, count, like, out, scale, offsets, mask,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    total = _load_row(rows, 0, like, offsets, mask, ALIGNED)
    row = 1
    while row < count:
        total = total + _load_row(rows, row, like, offsets, mask, ALIGNED)
        row += 1
    total = total * scale
    if ACCUMULATE:
        total = widen(tl.load(out + offsets, mask=mask)) + total
    tl.store(out + offsets, narrow(total, out.dtype.element_ty), mask=mask)


@triton.jit
def _load_row(rows, row, like, offsets, mask, ALIGNED: tl.constexpr):
    pointer = tl.load(rows + row).to(like.dtype)
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return widen(tl.load(pointer + offsets, mask=mask))
