"""Lists of tensors while C++ reads them."""

from collections.abc import Sequence

from torch import Tensor


def hold(tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...] | None:
    """Return a tuple that keeps the tensors alive whoever changes the list meanwhile; None for no list or tuple."""
    return tuple(tensors) if isinstance(tensors, list | tuple) else None
