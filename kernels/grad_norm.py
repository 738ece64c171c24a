"""Sum of squares of a flat gradient, in an order that depends on its length alone."""

import triton
import triton.language as tl

from overlap.kernels.convert import widen


@triton.jit(do_not_specialize=["size"])
def sum_squares_kernel(grad, partial, size, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Write one fp64 sum per tile of ``ROWS * LANES`` elements: ``partial[program]``.

        tile      lane 0   lane 1  ...  lane LANES-1
        row 0       |        |             |            lanes add down the rows in order,
        row 1       v        v             v            then across in the compiler's fixed tree
        ...

    Traffic per element: read grad (2 or 4 bytes). fp64 sums neither overflow nor lose small terms.
    """
    tile = tl.program_id(0).to(tl.int64) * (ROWS * LANES)
    offsets = tile + tl.arange(0, LANES)
    sums = tl.zeros([LANES], dtype=tl.float64)
    if tile + ROWS * LANES <= size:
        for row in tl.range(ROWS, loop_unroll_factor=4):
            x = widen(tl.load(grad + offsets + row * LANES)).to(tl.float64)
            sums += x * x
    else:
        for row in tl.range(ROWS, loop_unroll_factor=4):
            inside = offsets + row * LANES < size
            x = widen(tl.load(grad + offsets + row * LANES, mask=inside, other=0.0)).to(tl.float64)
            sums += x * x
    tl.store(partial + tl.program_id(0), tl.sum(sums, axis=0))


@triton.jit(do_not_specialize=["tiles"])
def finish_kernel(partial, out, tiles, ACCUMULATE: tl.constexpr, LANES: tl.constexpr):
    """Add the partial sums in one program and set ``out = [sum, non-finite flag]``.

    Lane ``j`` adds tiles ``j, j + LANES, ...`` in order. Traffic: 8 bytes per tile.
    """
    lanes = tl.arange(0, LANES)
    sums = tl.zeros([LANES], dtype=tl.float64)
    start = 0
    while start < tiles:
        sums += tl.load(partial + start + lanes, mask=start + lanes < tiles, other=0.0)
        start += LANES
    total = tl.sum(sums, axis=0)
    # No finite fp32 overflows an fp64 sum of squares: the sum alone tells. NaN fails the comparison.
    flag = tl.where(total < float("inf"), 0.0, 1.0).to(tl.float64)
    if ACCUMULATE:
        total += tl.load(out)
        flag = tl.maximum(flag, tl.load(out + 1))
    tl.store(out, total)
    tl.store(out + 1, flag)
