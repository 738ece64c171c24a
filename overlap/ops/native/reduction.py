"""``grad_norm`` and ``reduce_sum`` in C++ (csrc/grad_norm.cpp, csrc/reduce_sum.cpp)."""

from collections.abc import Sequence

from torch import Tensor

from overlap import _native
from overlap.ops import check
from overlap.ops.native.holding import hold
from overlap.ops.native.refusal import unreadable
from overlap.ops.threads import get_num_threads


def grad_norm(grad: Tensor, out: Tensor, accumulate: bool, /) -> None:
    """See ``overlap.ops.grad_norm``."""
    if not _native.grad_norm(grad, out, accumulate, get_num_threads()):
        check.grad_norm(grad, out, accumulate)
        raise unreadable("grad_norm")


def reduce_sum(rows: Sequence[Tensor], out: Tensor, scale: float, accumulate: bool, norm: Tensor | None, /) -> None:
    """See ``overlap.ops.reduce_sum``."""
    if not _native.reduce_sum(hold(rows), out, scale, accumulate, norm, get_num_threads()):
        check.reduce_sum(rows, out, scale, accumulate, norm)
        if not _native.reduce_sum(tuple(rows), out, float(scale), accumulate, norm, get_num_threads()):
            raise unreadable("reduce_sum")
