"""fp32 to fewer bits: bf16 rounded stochastically, and 8-bit floats with three mantissa bits, as bit patterns.

A value between two neighbours a < b goes to b with probability (x - a) / (b - a), in steps of 2^-16 (bf16) or
finer: the mean over many draws is the value itself. A value that the format holds is never moved.
"""

import torch
from torch import Tensor


def stochastic_bf16(values: Tensor, random: Tensor) -> Tensor:
    """Round fp32 ``values`` by 16 ``random`` bits each; Inf stays and NaN stays NaN."""
    bits = (values.view(torch.int32) + random) >> 16
    return torch.where(values.isfinite(), bits.short().view(torch.bfloat16), values.bfloat16())


def encode_minifloat(values: Tensor, *, bias: int, largest: int, random: Tensor | None) -> Tensor:
    """Return the uint8 codes ``exponent << 3 | mantissa`` of fp32 ``values >= 0``, at most ``largest``.

    Stochastic with 16 ``random`` bits each, to nearest even without.
    """
    bits = values.view(torch.int32)
    steps = values * 2.0 ** (bias + 2)  # below the smallest normal number the codes count multiples of 2^-(bias + 2)
    if random is None:
        bits = bits + 0x7FFFF + (bits >> 20 & 1)
        steps = steps.round()
    else:
        bits = bits + (random << 4)
        steps = (steps + random.float() * 2.0**-16).floor()
    normal = (bits >> 20) - ((127 - bias) << 3)
    code = torch.where(values < 2.0 ** (1 - bias), steps.clamp(max=255.0).int(), normal)
    return code.clamp(max=largest).to(torch.uint8)


def decode_minifloat(code: Tensor, *, bias: int) -> Tensor:
    """Return the fp32 values of uint8 ``code`` without a sign bit, exactly."""
    wide = code.int()
    normal = ((wide << 20) + ((127 - bias) << 23)).view(torch.float32)
    return torch.where(wide < 8, wide.float() * 2.0 ** (-bias - 2), normal)
