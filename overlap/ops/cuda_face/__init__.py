"""The CUDA C++ face: kernels that nvcc compiled when the package was built (csrc/cuda), for what moves many tensors.

Addresses of tensors travel inside the launch, so nothing is uploaded when gradients move; launches are asynchronous, on
torch's current stream, and never synchronise. The updates and the quantisation, whose arguments are few, are Triton's.
"""

from overlap.ops.cuda_face.grad_norm import grad_norm
from overlap.ops.cuda_face.pack import pack
from overlap.ops.cuda_face.reduce_sum import reduce_sum
from overlap.ops.cuda_face.routes import available, why_not
from overlap.ops.cuda_face.unpack import unpack
from overlap.ops.triton_face import adamw, adamw_8bit, dequantize, lion, quantize, sgd_momentum

__all__ = [
    "adamw",
    "adamw_8bit",
    "available",
    "dequantize",
    "grad_norm",
    "lion",
    "pack",
    "quantize",
    "reduce_sum",
    "sgd_momentum",
    "unpack",
    "why_not",
]
