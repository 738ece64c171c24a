"""What each op asks of its arguments. The functions have the names and the signatures of a face's, and raise.

A face that verifies its arguments itself calls one of them to say precisely what did not fit; the others run behind
them (``faces.checked``).
"""

from overlap.ops.check.compression import dequantize, quantize
from overlap.ops.check.movement import pack, unpack
from overlap.ops.check.reduction import grad_norm, reduce_sum
from overlap.ops.check.updates import adamw, adamw_8bit, lion, sgd_momentum

__all__ = [
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
