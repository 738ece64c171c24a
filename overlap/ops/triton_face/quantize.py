"""Block quantization to 8 bits, and back: kernels/quantize.py."""

import torch
from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.quantize import dequantize_kernel, quantize_kernel
from overlap.ops.triton_face.launching import EXACT, on, programs


def quantize(values: Tensor, payload: Tensor, scales: Tensor, block: int) -> None:
    """See ``overlap.ops.quantize``. A program holds whole blocks, and more warps where a block is large."""
    size = values.numel()
    if size == 0:
        return
    shape = launch.QUANTIZE
    tile = max(shape.block, block)
    num_warps = min(shape.num_warps * tile // shape.block, launch.QUANTIZE_WARPS)
    bits, e4m3 = _bits(payload)
    with on(values.device):
        quantize_kernel[(programs(size, tile),)](
            values, bits, scales, size, E4M3=e4m3, ROWS=tile // block, BLOCK=block, num_warps=num_warps, **EXACT,
        )  # fmt: skip


def dequantize(payload: Tensor, scales: Tensor, out: Tensor, block: int, accumulate: bool) -> None:
    """See ``overlap.ops.dequantize``."""
    size = out.numel()
    if size == 0:
        return
    shape = launch.DEQUANTIZE
    lanes = min(shape.block, block)
    bits, e4m3 = _bits(payload)
    with on(out.device):
        dequantize_kernel[(programs(size, shape.block),)](
            bits, scales, out, size, E4M3=e4m3, ACCUMULATE=accumulate, ROWS=shape.block // lanes, LANES=lanes,
            BLOCK=block, num_warps=shape.num_warps, **EXACT,
        )  # fmt: skip


def _bits(payload: Tensor) -> tuple[Tensor, bool]:
    """Return the payload as kernels take it, and whether it is e4m3: without fp8 types, sm_80 has them too."""
    e4m3 = payload.dtype == torch.float8_e4m3fn
    return payload.view(torch.uint8) if e4m3 else payload, e4m3
