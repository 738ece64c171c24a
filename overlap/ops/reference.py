"""The truth: each fused op in a few lines of plain torch.

The native and Triton faces do the same float32 operations in the same order, so on finite values they
agree bit for bit (``grad_norm``, whose sums run in float64, to a few units in the last place).
Runs on any device, without a host synchronisation.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from overlap.ops.coefficients import AdamWCoefficients
from overlap.ops.slots import PackSlot

NORM_TILE = 16384
"""Elements per partial sum. Below torch's own splitting size (32768), so no thread count changes the sum."""


@torch.no_grad()
def pack(
    grads: Sequence[Tensor | None],
    bucket: Tensor,
    slots: tuple[PackSlot, ...],
    *,
    scale: float,
    accumulate: bool,
) -> None:
    """See ``overlap.ops.pack``."""
    if not accumulate:
        bucket.zero_()
    for grad, slot in zip(grads, slots, strict=True):
        if grad is None or slot.numel == 0:
            continue
        values = grad.reshape(-1).float() * scale
        for row, part in enumerate(torch.split(values, slot.chunk)):
            target = bucket[row].narrow(0, slot.offset, part.numel())
            target.copy_(target.float() + part if accumulate else part)


@torch.no_grad()
def adamw(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: AdamWCoefficients,
    *,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
) -> None:
    """See ``overlap.ops.adamw``."""
    c = coefficients
    g = grad.float() if grad_scale is None else grad.float() * grad_scale
    g = -g if maximize else g
    m = exp_avg + (g - exp_avg) * c.blend1
    v = exp_avg_sq * c.beta2 + (g * c.blend2) * g
    # torch.sqrt of float32 is not correctly rounded on CPU; through float64 it is.
    denominator = v.double().sqrt().float() / c.root_correction2 + c.eps
    p = master * c.decay - (m * c.step_size) / denominator
    for state, new in ((master, p), (exp_avg, m), (exp_avg_sq, v), (shard, p)):
        if state is not None:
            state.copy_(new if skip is None else torch.where(skip != 0, state, new.to(state.dtype)))


@torch.no_grad()
def grad_norm(grad: Tensor, out: Tensor, *, accumulate: bool) -> None:
    """See ``overlap.ops.grad_norm``."""
    partial = grad.double().square()
    while partial.numel() > 1:
        partial = pad(partial, (0, -partial.numel() % NORM_TILE)).view(-1, NORM_TILE).sum(dim=1)
    total = partial.sum()
    # No finite float32 overflows a float64 sum of squares: the sum alone tells whether all were finite.
    flag = (~total.isfinite()).to(out.dtype)
    out[0] = out[0] + total if accumulate else total
    out[1] = torch.maximum(out[1], flag) if accumulate else flag


@torch.no_grad()
def reduce_sum(rows: Sequence[Tensor], out: Tensor, *, scale: float, accumulate: bool) -> None:
    """See ``overlap.ops.reduce_sum``."""
    total = rows[0].float()
    for row in rows[1:]:
        total = total + row.float()
    total = total * scale
    out.copy_(out.float() + total if accumulate else total)
