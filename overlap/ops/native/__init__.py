"""The C++ face, for CPU tensors.

Nothing else imports ``overlap._native``, but for ``overlap.bench.extension``, which times its calls.

C++ reads and verifies the tensors itself (csrc/arguments.h), in well under a microsecond a call, before anything is
written. Where something does not fit it returns False, and ``overlap.ops.check`` says what. The GIL is released
for more than 65,536 elements; the caller's references keep the memory alive until the call returns.
"""

from overlap.ops.native.compression import dequantize, quantize
from overlap.ops.native.movement import pack, unpack
from overlap.ops.native.reduction import grad_norm, reduce_sum
from overlap.ops.native.updates import adamw, adamw_8bit, lion, sgd_momentum

VERIFIES = True
"""Arguments need no check before the call."""

__all__ = [
    "VERIFIES",
    "adamw",
    "adamw_8bit",
    "dequantize",
    "grad_norm",
    "lion",
    "pack",
    "quantize",
    "reduce_sum",
    "sgd_momentum",
    "unpack",
]
