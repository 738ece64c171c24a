"""AdamW whose moments are 8-bit floats with one fp32 scale per block of 256."""

import torch
from torch import Tensor

from overlap.ops.coefficients import AdamWCoefficients
from overlap.ops.reference import philox
from overlap.ops.reference.adamw import adamw_step
from overlap.ops.reference.blocks import per_element, scale_of
from overlap.ops.reference.rounding import decode_minifloat, encode_minifloat
from overlap.ops.reference.state import Rounding, gradient, store

BLOCK = 256
SIGNED_BIAS, SIGNED_LARGEST, SIGNED_MAX = 7, 126, 448.0
"""e4m3, as ``torch.float8_e4m3fn``: codes of |m|, and the value of the largest."""
UNSIGNED_BIAS, UNSIGNED_LARGEST, UNSIGNED_MAX = 15, 255, 122880.0
"""ue5m3: v is never negative, so its sign bit goes to the exponent."""


@torch.no_grad()
def adamw_8bit(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    exp_avg_scale: Tensor,
    exp_avg_sq_scale: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: AdamWCoefficients,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
    seed: int,
    start: int,
    step: int,
) -> None:
    """See ``overlap.ops.adamw_8bit``."""
    magnitude = decode_minifloat(exp_avg & 0x7F, bias=SIGNED_BIAS)
    m = torch.where(exp_avg > 0x7F, -magnitude, magnitude) * per_element(exp_avg_scale, master, BLOCK)
    v = decode_minifloat(exp_avg_sq, bias=UNSIGNED_BIAS) * per_element(exp_avg_sq_scale, master, BLOCK)
    p, m, v = adamw_step(master, m, v, gradient(grad, grad_scale, maximize), coefficients)
    rounding = Rounding(seed, start, step)
    first_scale, first = _signed(m, rounding.bits(m, philox.FIRST))
    second_scale, second = _unsigned(v, rounding.bits(v, philox.SECOND))
    states = (master, exp_avg, exp_avg_scale, exp_avg_sq, exp_avg_sq_scale, shard)
    for state, new in zip(states, (p, first, first_scale, second, second_scale, p), strict=True):
        store(state, new, skip)


def _signed(m: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales and codes of the first moment."""
    scale = scale_of(m, BLOCK, SIGNED_MAX)
    each = per_element(scale, m, BLOCK)
    code = encode_minifloat(m.abs() / each, bias=SIGNED_BIAS, largest=SIGNED_LARGEST, random=random)
    code = code | (m.signbit().to(torch.uint8) << 7)
    return scale, torch.where(each.isnan(), 0, code)


def _unsigned(v: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales and codes of the second moment."""
    scale = scale_of(v, BLOCK, UNSIGNED_MAX)
    each = per_element(scale, v, BLOCK)
    code = encode_minifloat(v / each, bias=UNSIGNED_BIAS, largest=UNSIGNED_LARGEST, random=random)
    return scale, torch.where(each.isnan(), 0, code)
