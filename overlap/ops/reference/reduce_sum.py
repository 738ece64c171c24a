"""Rows into one, in order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from overlap.ops.reference.grad_norm import grad_norm


@torch.no_grad()
def reduce_sum(rows: Sequence[Tensor], out: Tensor, scale: float, accumulate: bool, norm: Tensor | None) -> None:
    """See ``overlap.ops.reduce_sum``."""
    total = rows[0].float()
    for row in rows[1:]:
        total = total + row.float()
    total = total * scale
    out.copy_(out.float() + total if accumulate else total)
    if norm is not None:
        grad_norm(out, norm, True)
