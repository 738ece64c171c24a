"""Sum of squares of a flat gradient, in an order that depends on its length alone."""

import triton
import triton.language as tl

from overlap.kernels.convert import widen


@triton.jit(do_not_specialize=["size"])
def sum_squares_kernel(grad, partial, size: tl.int64, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Write one fp64 sum per tile of ``ROWS * LANES`` elements: ``partial[program]``.

        tile      lane 0   lane 1  ...  lane LANES-1
        row 0       |        |             |            lanes add down the rows in order,
        row 1       v        v             v            then neighbours in pairs (sum_lanes)
        ...

    Traffic per element: read grad (2 or 4 bytes). fp64 sums neither overflow nor lose small terms.
    """
    tile = tl.program_id(0).to(tl.int64) * (ROWS * LANES)
    lanes = tl.arange(0, LANES)
    sums = tl.zeros([LANES], dtype=tl.float64)
    if tile + ROWS * LANES <= size:
        for row in tl.range(ROWS, loop_unroll_factor=4):
            sums += square(widen(tl.load(grad + tile + row * LANES + lanes)))
    else:
        for row in tl.range(ROWS, loop_unroll_factor=4):
            inside = tile + row * LANES + lanes < size
            sums += square(widen(tl.load(grad + tile + row * LANES + lanes, mask=inside, other=0.0)))
    tl.store(partial + tl.program_id(0), sum_lanes(sums, LANES))


@triton.jit
def square(x):
    """Return fp32 ``x`` squared in fp64, exactly."""
    wide = x.to(tl.float64)
    return wide * wide


@triton.jit
def sum_lanes(sums, LANES: tl.constexpr):
    """Add ``[LANES]`` (a power of two) in pairs of neighbours, until one number is left.

        ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))

    ``tl.sum`` alone adds in an order that follows the layout of registers, which differs between dtypes and
    kernels: with it reduce_sum could not equal grad_norm.
    """
    if LANES > 1:
        return sum_lanes(tl.sum(tl.reshape(sums, [LANES // 2, 2]), axis=1), LANES // 2)
    else:
        return tl.sum(sums, axis=0)


@triton.jit(do_not_specialize=["tiles"])
def finish_kernel(partial, out, tiles: tl.int64, ACCUMULATE: tl.constexpr, LANES: tl.constexpr):
    """Add the partial sums in one program and set ``out = [sum, non-finite flag]``.

    Lane ``j`` adds tiles ``j, j + LANES, ...`` in order, then lanes in pairs. Traffic: 8 bytes per tile.
    """
    lanes = tl.arange(0, LANES)
    sums = tl.zeros([LANES], dtype=tl.float64)
    start = tl.zeros([], dtype=tl.int64)
    while start < tiles:
        sums += tl.load(partial + start + lanes, mask=start + lanes < tiles, other=0.0)
        start += LANES
    total = sum_lanes(sums, LANES)
    # No finite fp32 overflows an fp64 sum of squares: the sum alone tells. NaN fails the comparison.
    flag = tl.where(total < float("inf"), 0.0, 1.0).to(tl.float64)
    if ACCUMULATE:
        total += tl.load(out)
        flag = tl.maximum(flag, tl.load(out + 1))
    tl.store(out, total)
    tl.store(out + 1, flag)
