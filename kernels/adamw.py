"""AdamW over one unit's flat shard, with the cast for the next gather."""

import triton
import triton.language as tl

from overlap.kernels.convert import narrow, widen


@triton.jit(do_not_specialize=["size"])
def adamw_kernel(
    master, exp_avg, exp_avg_sq, grad, shard, grad_scale, skip, size,
    decay, blend1, beta2, blend2, root_correction2, eps, step_size,
    HAS_SHARD: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_SKIP: tl.constexpr, MAXIMIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Update ``[size]`` elements, one BLOCK per program.

        program        0         1               last
        element  |  BLOCK   |  BLOCK   | ... | BLOCK, masked |

    Traffic per element: read and write master, m, v (24 bytes), read grad (2 or 4), write shard (2).
    Flag and scale are read on the device: a skipped step costs one load per program and no host sync.
    """
    if HAS_SKIP:
        if tl.load(skip) != 0:
            return
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    factor = tl.load(grad_scale) if HAS_SCALE else 1.0
    if start + BLOCK <= size:
        # No mask: 16-byte vectors whatever the size.
        _update(
            master, exp_avg, exp_avg_sq, grad, shard, offsets, None, factor,
            decay, blend1, beta2, blend2, root_correction2, eps, step_size, HAS_SHARD, MAXIMIZE,
        )  # fmt: skip
    else:
        _update(
            master, exp_avg, exp_avg_sq, grad, shard, offsets, offsets < size, factor,
            decay, blend1, beta2, blend2, root_correction2, eps, step_size, HAS_SHARD, MAXIMIZE,
        )  # fmt: skip


@triton.jit
def _update(
    master, exp_avg, exp_avg_sq, grad, shard, offsets, mask, factor,
    decay, blend1, beta2, blend2, root_correction2, eps, step_size,
    HAS_SHARD: tl.constexpr, MAXIMIZE: tl.constexpr,
):  # fmt: skip
    """One block, operation by operation as overlap/ops/reference.py (IEEE division and square root)."""
    g = widen(tl.load(grad + offsets, mask=mask)) * factor
    g = -g if MAXIMIZE else g
    m = tl.load(exp_avg + offsets, mask=mask)
    v = tl.load(exp_avg_sq + offsets, mask=mask)
    p = tl.load(master + offsets, mask=mask)
    m = m + (g - m) * blend1
    v = v * beta2 + (g * blend2) * g
    denominator = tl.div_rn(tl.sqrt_rn(v), root_correction2) + eps
    p = p * decay - tl.div_rn(m * step_size, denominator)
    tl.store(exp_avg + offsets, m, mask=mask)
    tl.store(exp_avg_sq + offsets, v, mask=mask)
    tl.store(master + offsets, p, mask=mask)
    if HAS_SHARD:
        tl.store(shard + offsets, narrow(p, shard.dtype.element_ty), mask=mask)
