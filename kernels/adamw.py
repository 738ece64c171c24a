"""AdamW over one unit's flat shard, with the cast for the next gather."""

import triton
import triton.language as tl

from overlap.kernels.convert import widen
from overlap.kernels.rounding import FIRST, MASTER, SECOND, round_state
from overlap.kernels.update import gradient, skipped, store_shard


@triton.jit(do_not_specialize=["size", "seed", "first", "step"])
def adamw_kernel(
    master, exp_avg, exp_avg_sq, grad, shard, grad_scale, skip, size: tl.int64,
    decay, blend1, beta2, blend2, root_correction2, eps, step_size,
    seed: tl.int64, first: tl.int64, step: tl.int64,
    HAS_SHARD: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_SKIP: tl.constexpr, MAXIMIZE: tl.constexpr,
    STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update ``[size]`` elements, one BLOCK per program.

        program        0         1               last
        element  |  BLOCK   |  BLOCK   | ... | BLOCK, masked |     element 0 has global index ``first``

    Traffic per element: read and write master, m, v (24 bytes; 12 as bf16), read grad (2 or 4), write shard (2;
    none with a bf16 master). With STOCHASTIC, bf16 states are rounded up or down by random bits.
    """
    if skipped(skip, HAS_SKIP):
        return
    start = tl.program_id(0).to(tl.int64) * BLOCK
    left = tl.minimum(size - start, BLOCK).to(tl.int32)
    lanes = tl.arange(0, BLOCK)
    if left == BLOCK:  # no mask: 16-byte vectors whatever the size
        p, m, v, g = load_four(master, exp_avg, exp_avg_sq, grad, start, lanes, None)
    else:
        p, m, v, g = load_four(master, exp_avg, exp_avg_sq, grad, start, lanes, lanes < left)
    g = gradient(g, grad_scale, HAS_SCALE, MAXIMIZE)
    p, m, v = adamw_step(p, m, v, g, decay, blend1, beta2, blend2, root_correction2, eps, step_size)
    at = first + start
    m = round_state(m, exp_avg.dtype.element_ty, seed, at, step, FIRST, STOCHASTIC, BLOCK)
    v = round_state(v, exp_avg_sq.dtype.element_ty, seed, at, step, SECOND, STOCHASTIC, BLOCK)
    w = round_state(p, master.dtype.element_ty, seed, at, step, MASTER, STOCHASTIC, BLOCK)
    if left == BLOCK:
        store_four(master, exp_avg, exp_avg_sq, shard, start, lanes, None, w, m, v, p, HAS_SHARD)
    else:
        store_four(master, exp_avg, exp_avg_sq, shard, start, lanes, lanes < left, w, m, v, p, HAS_SHARD)


@triton.jit
def load_four(master, exp_avg, exp_avg_sq, grad, start, lanes, mask):
    """Return a block of each, as it is stored."""
    p = tl.load(master + start + lanes, mask=mask)
    m = tl.load(exp_avg + start + lanes, mask=mask)
    v = tl.load(exp_avg_sq + start + lanes, mask=mask)
    return p, m, v, tl.load(grad + start + lanes, mask=mask)


@triton.jit
def store_four(master, exp_avg, exp_avg_sq, shard, start, lanes, mask, w, m, v, p, HAS_SHARD: tl.constexpr):
    """Store the new states as they are, and the fp32 weights ``p`` as the shard."""
    tl.store(master + start + lanes, w, mask=mask)
    tl.store(exp_avg + start + lanes, m, mask=mask)
    tl.store(exp_avg_sq + start + lanes, v, mask=mask)
    store_shard(shard, start, lanes, mask, p, HAS_SHARD)


@triton.jit
def adamw_step(p, m, v, g, decay, blend1, beta2, blend2, root_correction2, eps, step_size):
    """Return the new ``p, m, v`` in fp32, operation by operation as overlap/ops/reference/adamw.py."""
    m = widen(m)
    m = m + (g - m) * blend1
    v = widen(v) * beta2 + (g * blend2) * g
    denominator = tl.div_rn(tl.sqrt_rn(v), root_correction2) + eps
    return widen(p) * decay - tl.div_rn(m * step_size, denominator), m, v
