"""8-bit floats with three mantissa bits, as bit patterns: any GPU has the instructions, whatever its fp8 units.

A code is ``exponent << 3 | mantissa`` and has no sign: e4m3 has bias 7 and largest code 126 (448), ue5m3 bias 15
and largest code 255 (122880).
"""

import triton
import triton.language as tl

from overlap.kernels.convert import negate

SMALLEST = tl.constexpr(2.0**-126)
"""The least scale of a block, the smallest normal fp32: a block of zeros divides by it, and no quotient overflows."""
INFINITY = tl.constexpr(0x7F800000)
"""Bits of Inf; those of NaN, without its sign, are greater."""


@triton.jit
def encode_stochastic(y, random, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    """Return the codes (uint32) of fp32 ``y >= 0``, up or down by 16 ``random`` bits each."""
    bits = y.to(tl.uint32, bitcast=True)
    normal = ((bits + (random << 4)) >> 20) - ((127 - BIAS) << 3)
    steps = _steps(y, BIAS) + random.to(tl.float32) * 2.0**-16
    return _code(y, normal, steps.to(tl.uint32), BIAS, LARGEST)


@triton.jit
def encode_nearest(y, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    """Return the codes (uint32) of fp32 ``y >= 0``, rounded to nearest even."""
    bits = y.to(tl.uint32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - BIAS) << 3)
    return _code(y, normal, round_even(_steps(y, BIAS)).to(tl.uint32, bitcast=True), BIAS, LARGEST)


@triton.jit
def _steps(y, BIAS: tl.constexpr):
    """Below the smallest normal number the codes count steps of 2^-(BIAS + 2); the rest is held off the cast."""
    return tl.minimum(y, 2.0 ** (1 - BIAS)) * 2.0 ** (BIAS + 2)


@triton.jit
def _code(y, normal, subnormal, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    return tl.minimum(tl.where(y < 2.0 ** (1 - BIAS), subnormal, normal), LARGEST)


@triton.jit
def decode(code, BIAS: tl.constexpr):
    """Return the fp32 values of ``code`` (uint32), exactly."""
    normal = ((code << 20) + ((127 - BIAS) << 23)).to(tl.float32, bitcast=True)
    return tl.where(code < 8, code.to(tl.float32) * 2.0 ** (-BIAS - 2), normal)


@triton.jit
def decode_signed(code, BIAS: tl.constexpr):
    """Return the fp32 values of ``code`` (uint32) with a sign in bit 7, exactly."""
    magnitude = decode(code & 0x7F, BIAS)
    return tl.where(code > 0x7F, negate(magnitude), magnitude)


@triton.jit
def round_even(x):
    """Return fp32 ``x``, ``|x| < 2^22``, as int32, halves to even: adding 1.5 * 2^23 leaves it in the low bits."""
    return (x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def scaled(x, MAXIMUM: tl.constexpr):
    """Divide each row of fp32 ``[ROWS, BLOCK]`` by its scale, ``max(max |x| / MAXIMUM, SMALLEST)``.

    Returns ``(quotients, scales [ROWS], finite [ROWS, 1])``; a row that is not finite has scale NaN and quotients 0.
    Compared as integers, magnitudes are in order and NaN is the greatest.
    """
    most = tl.max(x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF, axis=1)
    finite = most < INFINITY
    scale = tl.div_rn(tl.where(finite, most, 0).to(tl.float32, bitcast=True), MAXIMUM)
    scale = tl.maximum(scale, SMALLEST)
    y = tl.div_rn(tl.where(finite[:, None], x, 0.0), scale[:, None])
    return y, tl.where(finite, scale, float("nan")), finite[:, None]
