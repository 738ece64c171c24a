"""Sum of squares in float64, and whether all of it was finite."""

import torch
from torch import Tensor
from torch.nn.functional import pad

TILE = 16384
"""Elements per partial sum. Below torch's own splitting size (32768), so no thread count changes the sum."""


@torch.no_grad()
def grad_norm(grad: Tensor, out: Tensor, accumulate: bool) -> None:
    """See ``overlap.ops.grad_norm``."""
    partial = grad.double().square()
    while partial.numel() > 1:
        partial = pad(partial, (0, -partial.numel() % TILE)).view(-1, TILE).sum(dim=1)
    total = partial.sum()
    # No finite float32 overflows a float64 sum of squares: the sum alone tells whether all were finite.
    flag = (~total.isfinite()).to(out.dtype)
    out[0] = out[0] + total if accumulate else total
    out[1] = torch.maximum(out[1], flag) if accumulate else flag
