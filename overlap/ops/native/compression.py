"""``quantize`` and ``dequantize`` in C++ (csrc/quantize.cpp)."""

from torch import Tensor

from overlap import _native
from overlap.ops import check
from overlap.ops.native.refusal import unreadable
from overlap.ops.threads import get_num_threads


def quantize(values: Tensor, payload: Tensor, scales: Tensor, block: int, /) -> None:
    """See ``overlap.ops.quantize``."""
    if not _native.quantize(values, payload, scales, block, get_num_threads()):
        check.quantize(values, payload, scales, block)
        raise unreadable("quantize")


def dequantize(payload: Tensor, scales: Tensor, out: Tensor, block: int, accumulate: bool, /) -> None:
    """See ``overlap.ops.dequantize``."""
    if not _native.dequantize(payload, scales, out, block, accumulate, get_num_threads()):
        check.dequantize(payload, scales, out, block, accumulate)
        raise unreadable("dequantize")
