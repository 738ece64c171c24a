"""Sum k rows in order and round once: the local half of a reduce-scatter, and the norm of what it wrote."""

import triton
import triton.language as tl

from overlap.kernels.convert import narrow, widen
from overlap.kernels.grad_norm import square, sum_lanes


@triton.jit(do_not_specialize=["count", "size"])
def reduce_sum_kernel(
    rows, count, like, out, size: tl.int64, scale, ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """``out[i] = (rows[0][i] + rows[1][i] + ...) * scale``; ``rows`` is a table of ``count`` addresses.

        program        0        1            last
        rows[0]  |  BLOCK  |  BLOCK  | ... | masked |     added down the rows, in order, in fp32;
        rows[1]  |         |         |     |        |     out may be one of the rows: a program reads
        out      |    v    |    v    |     |   v    |     all of its block before it writes

    Traffic per element: read ``count`` rows, write out (read it too with ACCUMULATE). ``like`` is the first
    row, passed for its dtype; ALIGNED promises that every address is a multiple of 16.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    left = tl.minimum(size - start, BLOCK).to(tl.int32)
    lanes = tl.arange(0, BLOCK)
    if left == BLOCK:
        _sum_block(rows, count, like, out, scale, start, lanes, None, ALIGNED, ACCUMULATE)
    else:
        _sum_block(rows, count, like, out, scale, start, lanes, lanes < left, False, ACCUMULATE)


@triton.jit(do_not_specialize=["count", "size"])
def reduce_sum_norm_kernel(
    rows, count, like, out, partial, size: tl.int64, scale, ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """As above, and ``partial[program]`` = the sum of squares of what was written, as sum_squares_kernel makes it.

        program 0                                     program 1
        elements    0 ..   LANES-1   first row        tile of ROWS * LANES elements, in the order of
                LANES .. 2*LANES-1   second row       kernels/grad_norm.py: lanes down the rows, then
                  ...                                 neighbours in pairs

    The rounded values are still in registers: the norm costs no traffic but 8 bytes per tile.
    """
    tile = tl.program_id(0).to(tl.int64) * (ROWS * LANES)
    lanes = tl.arange(0, LANES)
    sums = tl.zeros([LANES], dtype=tl.float64)
    if tile + ROWS * LANES <= size:
        for row in tl.range(ROWS):
            start = tile + row * LANES
            sums += square(_sum_block(rows, count, like, out, scale, start, lanes, None, ALIGNED, ACCUMULATE))
    else:
        for row in tl.range(ROWS):
            start = tile + row * LANES
            inside = start + lanes < size
            written = _sum_block(rows, count, like, out, scale, start, lanes, inside, False, ACCUMULATE)
            sums += square(tl.where(inside, written, 0.0))
    tl.store(partial + tl.program_id(0), sum_lanes(sums, LANES))


@triton.jit
def _sum_block(rows, count, like, out, scale, start, lanes, mask, ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Write one block of ``out`` and return it as fp32, rounded as it was written."""
    total = _load_row(rows, 0, count, like, start, lanes, mask, ALIGNED)
    row = 1
    while row < count:
        # Four rows in flight, of which the last three may not be there.
        one = _load_row(rows, row, count, like, start, lanes, mask, ALIGNED)
        two = _load_row(rows, row + 1, count, like, start, lanes, mask, ALIGNED)
        three = _load_row(rows, row + 2, count, like, start, lanes, mask, ALIGNED)
        four = _load_row(rows, row + 3, count, like, start, lanes, mask, ALIGNED)
        total = total + one
        total = tl.where(row + 1 < count, total + two, total)
        total = tl.where(row + 2 < count, total + three, total)
        total = tl.where(row + 3 < count, total + four, total)
        row += 4
    total = total * scale
    if ACCUMULATE:
        total = widen(tl.load(out + start + lanes, mask=mask)) + total
    rounded = narrow(total, out.dtype.element_ty)
    tl.store(out + start + lanes, rounded, mask=mask)
    return widen(rounded)


@triton.jit
def _load_row(rows, row, count, like, start, lanes, mask, ALIGNED: tl.constexpr):
    pointer = tl.load(rows + row, mask=row < count, other=0).to(like.dtype)
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    present = tl.zeros(lanes.shape, dtype=tl.int32) + row < count  # the interpreter loads by no scalar mask
    inside = present if mask is None else mask & present
    return widen(tl.load(pointer + start + lanes, mask=inside))
