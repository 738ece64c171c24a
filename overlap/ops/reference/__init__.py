"""The truth: each fused op in a few lines of plain torch.

The other faces do the same float32 operations in the same order, so on finite values they agree bit for bit
(``grad_norm``, whose sums run in float64, to a few units in the last place). Runs on any device, without a host
synchronisation.
"""

from overlap.ops.reference.adamw import adamw
from overlap.ops.reference.adamw_8bit import adamw_8bit
from overlap.ops.reference.grad_norm import grad_norm
from overlap.ops.reference.lion import lion
from overlap.ops.reference.pack import pack
from overlap.ops.reference.quantize import dequantize, quantize
from overlap.ops.reference.reduce_sum import reduce_sum
from overlap.ops.reference.sgd_momentum import sgd_momentum
from overlap.ops.reference.unpack import unpack

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
