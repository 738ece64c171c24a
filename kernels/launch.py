"""Launch configurations, frozen: no autotuning inside a training step.

BLOCK is the elements of one program. Elementwise kernels give the same bits for any BLOCK; tests use large
ones, because the interpreter pays per program. The tile of grad_norm defines the order of its sum, so it is
part of the op and not a knob.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel's shape: elements per program and warps that share them."""

    block: int
    num_warps: int


# 8 elements per thread: one 16-byte vector of bf16, two of fp32, and one Philox counter. The codes of adamw_8bit are
# then 8-byte vectors; with twice the elements it would need up to 255 registers.
PACK = Launch(block=2048, num_warps=8)
UNPACK = Launch(block=2048, num_warps=8)
REDUCE_SUM = Launch(block=2048, num_warps=8)
ADAMW = Launch(block=1024, num_warps=4)
SGD_MOMENTUM = Launch(block=1024, num_warps=4)
LION = Launch(block=1024, num_warps=4)
ADAMW_8BIT = Launch(block=1024, num_warps=4)

# 16 elements per thread: one 16-byte vector of codes.
QUANTIZE = Launch(block=2048, num_warps=4)
DEQUANTIZE = Launch(block=2048, num_warps=4)

# A tile is NORM_ROWS rows of NORM_LANES elements.
NORM_ROWS = 16
NORM_LANES = 1024
NORM_WARPS = 4
"""4 warps over 1024 lanes: 8 elements (two 16-byte vectors of fp32) per thread and row."""

FINISH_LANES = 1024
"""Partial sums read at a time by the one program that finishes grad_norm."""

QUANTIZE_WARPS = 16
"""Most warps of quantize, whose program holds a whole block: 16384 elements are then 32 per thread."""
