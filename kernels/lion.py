"""Lion (the sign of an interpolated momentum) over one unit's flat shard, with the cast for the next gather."""

import triton
import triton.language as tl

from overlap.kernels.convert import widen
from overlap.kernels.rounding import FIRST, MASTER, round_state
from overlap.kernels.update import gradient, load_three, skipped, store_three


@triton.jit(do_not_specialize=["size", "seed", "first", "step"])
def lion_kernel(
    master, exp_avg, grad, shard, grad_scale, skip, size: tl.int64,
    decay, beta1, blend1, beta2, blend2, lr, seed: tl.int64, first: tl.int64, step: tl.int64,
    HAS_SHARD: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_SKIP: tl.constexpr, MAXIMIZE: tl.constexpr,
    STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update ``[size]`` elements, one BLOCK per program.

        program        0         1               last
        element  |  BLOCK   |  BLOCK   | ... | BLOCK, masked |     element 0 has global index ``first``

    Traffic per element: read and write master and m (16 bytes; 8 as bf16), read grad (2 or 4), write shard (2;
    none with a bf16 master). With STOCHASTIC, bf16 states are rounded up or down by random bits.
    """
    if skipped(skip, HAS_SKIP):
        return
    start = tl.program_id(0).to(tl.int64) * BLOCK
    left = tl.minimum(size - start, BLOCK).to(tl.int32)
    lanes = tl.arange(0, BLOCK)
    if left == BLOCK:  # no mask: 16-byte vectors whatever the size
        p, m, g = load_three(master, exp_avg, grad, start, lanes, None)
    else:
        p, m, g = load_three(master, exp_avg, grad, start, lanes, lanes < left)
    m = widen(m)
    g = gradient(g, grad_scale, HAS_SCALE, MAXIMIZE)
    p = widen(p) * decay - _sign(m * beta1 + g * blend1) * lr
    m = m * beta2 + g * blend2
    at = first + start
    m = round_state(m, exp_avg.dtype.element_ty, seed, at, step, FIRST, STOCHASTIC, BLOCK)
    w = round_state(p, master.dtype.element_ty, seed, at, step, MASTER, STOCHASTIC, BLOCK)
    if left == BLOCK:
        store_three(master, exp_avg, shard, start, lanes, None, w, m, p, HAS_SHARD)
    else:
        store_three(master, exp_avg, shard, start, lanes, lanes < left, w, m, p, HAS_SHARD)


@triton.jit
def _sign(u):
    """Return 1, -1 or 0, and NaN of NaN."""
    return tl.where(u > 0, 1.0, tl.where(u < 0, -1.0, tl.where(u == 0, 0.0, u)))
