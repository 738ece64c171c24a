"""bf16 <-> fp32 that is right under the interpreter too.

Triton's interpreter truncates fp32 -> bf16 and mistreats bf16 subnormals, so there the conversion is done on
the bits. Compiled code uses the GPU's own instructions; both round to nearest even.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def widen(x):
    """Return ``x`` (fp32, bf16 or fp16) as fp32, exactly."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """Return fp32 ``x`` as ``dtype``, rounded to nearest even; NaN stays NaN."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet_nan = (bits >> 16) | 0x40
        chosen = tl.where(x != x, quiet_nan, rounded)
        return chosen.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(dtype)


@triton.jit
def negate(x):
    """Return fp32 ``-x``. Triton 3.6 computes ``0 - x``, which makes +0 of the zero that should be -0."""
    return x * -1.0
