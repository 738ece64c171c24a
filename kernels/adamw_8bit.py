"""AdamW whose moments are 8-bit floats with one fp32 scale per 256 elements."""

import triton
import triton.language as tl

from overlap.kernels.adamw import adamw_step, load_four, store_four
from overlap.kernels.minifloat import decode, decode_signed, encode_stochastic, scaled
from overlap.kernels.rounding import FIRST, SECOND, random_bits
from overlap.kernels.update import gradient, skipped

GROUP = tl.constexpr(256)
"""Elements that share a scale: part of the format."""

# e4m3 holds m, with a sign; ue5m3 holds v, which is never negative.
SIGNED_BIAS, SIGNED_LARGEST, SIGNED_MAX = tl.constexpr(7), tl.constexpr(126), tl.constexpr(448.0)
UNSIGNED_BIAS, UNSIGNED_LARGEST, UNSIGNED_MAX = tl.constexpr(15), tl.constexpr(255), tl.constexpr(122880.0)


@triton.jit(do_not_specialize=["size", "seed", "first", "step"])
def adamw_8bit_kernel(
    master, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, grad, shard, grad_scale, skip, size: tl.int64,
    decay, blend1, beta2, blend2, root_correction2, eps, step_size,
    seed: tl.int64, first: tl.int64, step: tl.int64,
    HAS_SHARD: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_SKIP: tl.constexpr, MAXIMIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Update ``[size]`` elements, one BLOCK per program: ``BLOCK / 256`` rows, each with a scale of its own.

        program 0   row 0   elements   0 .. 255   scale 0      program 1 ...   last, masked
                    row 1   elements 256 .. 511   scale 1
                    ...

    Traffic per element: read and write master (8 bytes), m and v (4), their scales (1/16), read grad (2 or 4),
    write shard (2).
    """
    if skipped(skip, HAS_SKIP):
        return
    start = tl.program_id(0).to(tl.int64) * BLOCK
    left = tl.minimum(size - start, BLOCK).to(tl.int32)
    rows = tl.arange(0, BLOCK // GROUP)
    scales = start // GROUP + rows
    lanes = rows[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    sm = tl.load(exp_avg_scale + scales, mask=rows * GROUP < left)[:, None]
    sv = tl.load(exp_avg_sq_scale + scales, mask=rows * GROUP < left)[:, None]
    if left == BLOCK:  # no mask: vectors whatever the size
        p, m, v, g = load_four(master, exp_avg, exp_avg_sq, grad, start, lanes, None)
    else:
        p, m, v, g = load_four(master, exp_avg, exp_avg_sq, grad, start, lanes, lanes < left)
    g = gradient(g, grad_scale, HAS_SCALE, MAXIMIZE)
    m, v = decode_signed(m.to(tl.uint32), SIGNED_BIAS) * sm, decode(v.to(tl.uint32), UNSIGNED_BIAS) * sv
    p, m, v = adamw_step(p, m, v, g, decay, blend1, beta2, blend2, root_correction2, eps, step_size)
    # Lanes past the end must not count in the maximum of their block.
    m, sm = _encode_signed(tl.where(lanes < left, m, 0.0), seed, first + start, step, BLOCK)
    v, sv = _encode_unsigned(tl.where(lanes < left, v, 0.0), seed, first + start, step, BLOCK)
    if left == BLOCK:
        store_four(master, exp_avg, exp_avg_sq, shard, start, lanes, None, p, m, v, p, HAS_SHARD)
    else:
        store_four(master, exp_avg, exp_avg_sq, shard, start, lanes, lanes < left, p, m, v, p, HAS_SHARD)
    tl.store(exp_avg_scale + scales, sm, mask=rows * GROUP < left)
    tl.store(exp_avg_sq_scale + scales, sv, mask=rows * GROUP < left)


@triton.jit
def _encode_signed(m, seed, first, step, BLOCK: tl.constexpr):
    """Return the codes (uint8) and scales of ``[rows, 256]``; a row that is not finite is codes of 0, scale NaN."""
    y, scale, finite = scaled(tl.abs(m), SIGNED_MAX)
    random = tl.reshape(random_bits(seed, first, step, FIRST, BLOCK), m.shape)
    sign = (m.to(tl.uint32, bitcast=True) >> 31) << 7
    code = sign | encode_stochastic(y, random, SIGNED_BIAS, SIGNED_LARGEST)
    return tl.where(finite, code, 0).to(tl.uint8), scale


@triton.jit
def _encode_unsigned(v, seed, first, step, BLOCK: tl.constexpr):
    y, scale, finite = scaled(v, UNSIGNED_MAX)
    random = tl.reshape(random_bits(seed, first, step, SECOND, BLOCK), v.shape)
    code = encode_stochastic(y, random, UNSIGNED_BIAS, UNSIGNED_LARGEST)
    return tl.where(finite, code, 0).to(tl.uint8), scale
