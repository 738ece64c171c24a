"""``quantize`` and ``dequantize``."""

import torch
from torch import Tensor

from overlap.errors import ConfigError, message
from overlap.ops.check.tensors import FLOATS, FP32, check_flat
from overlap.ops.scalars import check_switch, is_whole

PAYLOADS = (torch.int8, torch.float8_e4m3fn)
LEAST_BLOCK, LARGEST_BLOCK = 32, 16384


def quantize(values: Tensor, payload: Tensor, scales: Tensor, block: int) -> None:
    """Refuse payloads and scales that do not fit the values."""
    check_flat("values", values, values, FLOATS)
    check_flat("payload", payload, values, PAYLOADS)
    _check_scales(scales, values, block)


def dequantize(payload: Tensor, scales: Tensor, out: Tensor, block: int, accumulate: bool) -> None:
    """Refuse scales and outputs that do not fit the payload."""
    check_flat("payload", payload, payload, PAYLOADS)
    check_flat("out", out, payload, FLOATS)
    check_switch("accumulate", accumulate)
    _check_scales(scales, payload, block)


def _check_scales(scales: Tensor, values: Tensor, block: int) -> None:
    if not is_whole(block) or not LEAST_BLOCK <= block <= LARGEST_BLOCK or block & (block - 1):
        rule = f"be a power of two from {LEAST_BLOCK} to {LARGEST_BLOCK}"
        raise ConfigError(message("block", rule, block, "choose 256 if in doubt"))
    check_flat("scales", scales, values, FP32, -(-values.numel() // block))
