"""Fused ops of the sharded step, each with several faces: plain torch, C++ on CPU, Triton and CUDA C++ on CUDA.

Importing this package needs torch alone: the first call that needs the extension or Triton loads it. Every op is also
``torch.ops.overlap.<name>`` (``library.py``), which is what ``torch.compile`` sees.
"""

from overlap.ops.compression import dequantize, quantize
from overlap.ops.faces import FaceMode, configure, face_name
from overlap.ops.movement import pack, unpack
from overlap.ops.reduction import grad_norm, reduce_sum
from overlap.ops.slots import PackSlot
from overlap.ops.threads import get_num_threads, set_num_threads
from overlap.ops.updates import adamw, adamw_8bit, lion, sgd_momentum

__all__ = [
    "FaceMode",
    "PackSlot",
    "adamw",
    "adamw_8bit",
    "configure",
    "dequantize",
    "face_name",
    "get_num_threads",
    "grad_norm",
    "lion",
    "pack",
    "quantize",
    "reduce_sum",
    "set_num_threads",
    "sgd_momentum",
    "unpack",
]
