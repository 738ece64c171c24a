"""Block quantization to 8 bits, and back."""

import torch
from torch import Tensor

from overlap.ops.reference.blocks import per_element, scale_of
from overlap.ops.reference.rounding import encode_minifloat

INT8_MAX, E4M3_MAX = 127.0, 448.0
E4M3_BIAS, E4M3_LARGEST = 7, 126


@torch.no_grad()
def quantize(values: Tensor, payload: Tensor, scales: Tensor, block: int) -> None:
    """See ``overlap.ops.quantize``."""
    wide = values.float()
    integers = payload.dtype == torch.int8
    scales.copy_(scale_of(wide, block, INT8_MAX if integers else E4M3_MAX))
    each = per_element(scales, values, block)
    code = _int8(wide / each) if integers else _e4m3(wide / each)
    payload.view(torch.int8).copy_(torch.where(each.isnan(), 0, code))


def _int8(scaled: Tensor) -> Tensor:
    return scaled.round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)


def _e4m3(scaled: Tensor) -> Tensor:
    """Return the bits of ``torch.float8_e4m3fn``; a cast would make NaN of what rounds above 448."""
    code = encode_minifloat(scaled.abs(), bias=E4M3_BIAS, largest=E4M3_LARGEST, random=None)
    return (code | scaled.signbit().to(torch.uint8) << 7).view(torch.int8)


@torch.no_grad()
def dequantize(payload: Tensor, scales: Tensor, out: Tensor, block: int, accumulate: bool) -> None:
    """See ``overlap.ops.dequantize``."""
    values = payload.float() * per_element(scales, out, block)
    out.copy_(out.float() + values if accumulate else values)
