"""What the kernels were compiled for (csrc/cuda/arguments.h); the launcher's module says the same of itself."""

THREADS = 256

CAPACITY = 505
"""Tensor addresses in one launch."""

BLOCK = 8192
"""Columns of a bucket row that one thread block moves."""

TILE = 4096
"""Elements per partial sum of squares; part of the order of the sum (csrc/cuda/norm.cuh)."""
