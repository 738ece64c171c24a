"""Gradients into a rank-major bucket."""

from collections.abc import Sequence

import torch
from torch import Tensor

from overlap.ops.slots import PackSlot


@torch.no_grad()
def pack(
    grads: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...], scale: float, accumulate: bool
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
