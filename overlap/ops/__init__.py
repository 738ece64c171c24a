"""Fused ops of the sharded step, each with three faces (plain torch, C++ on CPU, Triton on CUDA).

Importing this package needs torch alone: the first call that needs the extension or
Triton loads it.
"""

from overlap.ops.dispatch import adamw, grad_norm, pack, reduce_sum
from overlap.ops.faces import NativeMode, configure, face_name
from overlap.ops.slots import PackSlot
from overlap.ops.threads import get_num_threads, set_num_threads

__all__ = [
    "NativeMode",
    "PackSlot",
    "adamw",
    "configure",
    "face_name",
    "get_num_threads",
    "grad_norm",
    "pack",
    "reduce_sum",
    "set_num_threads",
]
