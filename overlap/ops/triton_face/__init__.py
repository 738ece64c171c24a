"""The Triton face, for CUDA tensors (and, under ``TRITON_INTERPRET=1``, for the tests on CPU).

Launches are asynchronous, never synchronise, allocate nothing once their tables and workspaces are there, and
compile once per combination of dtypes and flags. Arguments are already checked.
"""

from overlap.ops.triton_face.adamw import adamw
from overlap.ops.triton_face.adamw_8bit import adamw_8bit
from overlap.ops.triton_face.grad_norm import grad_norm
from overlap.ops.triton_face.lion import lion
from overlap.ops.triton_face.pack import pack
from overlap.ops.triton_face.quantize import dequantize, quantize
from overlap.ops.triton_face.reduce_sum import reduce_sum
from overlap.ops.triton_face.sgd_momentum import sgd_momentum
from overlap.ops.triton_face.unpack import unpack

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
