"""Random bits by element index, and fp32 -> bf16 with them: the mean of many roundings is the value itself."""

import triton
import triton.language as tl

from overlap.kernels.convert import narrow

# Streams: what the random bits of one element and step are for.
MASTER = tl.constexpr(0)
FIRST = tl.constexpr(1)
SECOND = tl.constexpr(2)


@triton.jit
def random_bits(seed, first, step, STREAM: tl.constexpr, COUNT: tl.constexpr):
    """Return 16 random bits (uint32) for each of the elements ``[first, first + COUNT)``; ``first`` divides by 8.

        group         |        0        |        1        | ...   Philox4x32-10: key = seed,
        philox words  |  w0  w1  w2  w3 |  w0  w1  w2  w3 |       counter = (group, step, STREAM)
        elements      | 0 1 2 3 4 5 6 7 | 8 9 ...                 low half first

    Where a thread holds 8 neighbours it makes their bits itself: about 13 instructions per element.
    """
    groups = (first.to(tl.uint64) >> 3) + tl.arange(0, COUNT // 8).to(tl.uint64)
    low, high = groups.to(tl.uint32), (groups >> 32).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed.to(tl.uint64), low, high, step.to(tl.uint32), STREAM)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), [COUNT])


@triton.jit
def stochastic_bf16(x, random):
    """Return fp32 ``x`` as bf16, up or down by its 16 ``random`` bits; Inf stays and NaN stays NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = ((bits + random) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return tl.where((bits & 0x7F800000) == 0x7F800000, narrow(x, tl.bfloat16), rounded)


@triton.jit
def round_state(
    x, dtype: tl.constexpr, seed, first, step, STREAM: tl.constexpr, STOCHASTIC: tl.constexpr, COUNT: tl.constexpr
):
    """Return the ``[COUNT]`` fp32 values of a state as ``dtype``; ``first`` is the global index of the first."""
    if STOCHASTIC and dtype == tl.bfloat16:
        return stochastic_bf16(x, random_bits(seed, first, step, STREAM, COUNT))
    else:
        return narrow(x, dtype)
