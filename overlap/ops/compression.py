"""Block-scaled 8-bit payloads: what a compressed wire carries.

Traffic is given per element; ``g`` are the bytes of the wide dtype. Both ops are bound by memory on
GPUs, by arithmetic on CPUs.

Tensors are read as they lie in memory: resolve lazily negated views (``tensor.is_neg()``) with ``resolve_neg()``; C++
cannot see that they are.
"""

import torch
from torch import Tensor
from torch.compiler import is_compiling

from overlap.ops.faces import face_of


def quantize(values: Tensor, payload: Tensor, scales: Tensor, *, block: int = 256) -> None:
    """Divide each block by a scale that makes its largest magnitude the largest code, and round to 8 bits.

    ``scale = max |x| / 127`` for int8 (error at most half a scale), ``max |x| / 448`` for float8 e4m3 (at most a
    sixteenth of the value, or 2^-10 scales where that is more); both round to nearest even. A block that holds
    a NaN or Inf gets the scale NaN: it is NaN as a whole when read back, never silently wrong.

    Traffic: ``g`` read (twice on blocks too large for the cache) + 1 written + ``4 / block``.

    Args:
        values: fp32, bf16 or fp16, 1-D contiguous.
        payload: int8 or float8_e4m3fn, 1-D contiguous, same length; overwritten.
        scales: fp32 ``[ceil(n / block)]``; overwritten.
        block: elements per scale; a power of two from 32 to 16384.

    Raises:
        ConfigError: wrong dtype, shape, device or block.

    Source: blockwise quantization as in Dettmers et al., "8-bit optimizers via block-wise quantization" (2021);
    e4m3 as in Micikevicius et al., "FP8 formats for deep learning" (2022).
    """
    if is_compiling():
        torch.ops.overlap.quantize(values, payload, scales, block)
    else:
        face_of(values).quantize(values, payload, scales, block)


def dequantize(payload: Tensor, scales: Tensor, out: Tensor, *, block: int = 256, accumulate: bool = False) -> None:
    """Multiply each element by its block's scale: ``quantize`` backwards.

    The product is fp32 and rounded once to the dtype of ``out``; with ``accumulate`` it is added to ``out`` in fp32
    first.

    Traffic: 1 read + ``g`` written (``2g`` with accumulate) + ``4 / block``.

    Args:
        payload: int8 or float8_e4m3fn, 1-D contiguous.
        scales: fp32 ``[ceil(n / block)]``.
        out: fp32, bf16 or fp16, 1-D contiguous, same length.
        block: elements per scale; a power of two from 32 to 16384.
        accumulate: add to ``out`` instead of overwriting it.

    Raises:
        ConfigError: wrong dtype, shape, device or block.
    """
    if is_compiling():
        torch.ops.overlap.dequantize(payload, scales, out, block, accumulate)
    else:
        face_of(payload).dequantize(payload, scales, out, block, accumulate)
