"""Sums over rows and over elements.

Traffic is given per element; ``g`` and ``b`` are the bytes of the input's and the output's dtype. On GPUs both
ops are bound by memory, so it is also the time; on CPUs so are ``reduce_sum`` and ``grad_norm`` of fp32, while
``grad_norm`` of 16-bit gradients is bound by its fp64 arithmetic.

Tensors are read as they lie in memory: resolve lazily negated views (``tensor.is_neg()``) with ``resolve_neg()``; C++
cannot see that they are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from overlap.ops.faces import face_of


def reduce_sum(
    rows: Sequence[Tensor], out: Tensor, *, scale: float = 1.0, accumulate: bool = False, norm: Tensor | None = None
) -> None:
    """Sum ``k`` rows in the given order in fp32, scale, and round once: the local half of a reduce-scatter.

    ``out = ((r0 + r1) + r2 ...) * scale``, or ``out + that`` with ``accumulate``. The order is the caller's, so
    results do not depend on bucketing, threads or grid.

    Traffic: ``k * g`` read + ``b`` written (one more ``b`` with accumulate). ``norm`` costs no traffic: the squares
    are summed while the block is at hand.

    Args:
        rows: at least one 1-D contiguous tensor; same length and dtype (fp32, bf16 or fp16).
        out: fp32, bf16 or fp16, 1-D contiguous, same length; may be exactly one of the rows, never a
            shifted part of one.
        scale: multiplies the sum; finite.
        accumulate: add to ``out``, last, in fp32.
        norm: fp64 ``[2]``; afterwards what ``grad_norm(out, norm, accumulate=True)`` would make of it, bit for bit.

    Raises:
        ConfigError: no rows, or lengths, dtypes or devices that differ.
    """
    if is_compiling():
        torch.ops.overlap.reduce_sum(rows, out, scale, accumulate, norm)
    else:
        face_of(out).reduce_sum(rows, out, scale, accumulate, norm)


def grad_norm(grad: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    """Sum the squares of a flat gradient, and tell whether all of it was finite, in one pass.

    ``out[0]`` is the sum in fp64, ``out[1]`` is 1 where a NaN or Inf was met (``out[0]`` is then NaN or Inf), else 0;
    so both can be summed over ranks. The order of the sum depends on the length alone: same bits for any thread
    count, grid or schedule. Faces differ in it, by a few units in the last place of fp64.

    Traffic: ``g`` read. ``accumulate`` adds to ``out[0]`` and takes the maximum of ``out[1]``.

    Args:
        grad: fp32, bf16 or fp16, 1-D contiguous; may be empty.
        out: fp64 ``[2]`` on the same device.
        accumulate: combine with what ``out`` holds instead of overwriting it.

    Raises:
        ConfigError: wrong dtype, shape or device.
    """
    if is_compiling():
        torch.ops.overlap.grad_norm(grad, out, accumulate)
    else:
        face_of(grad).grad_norm(grad, out, accumulate)
