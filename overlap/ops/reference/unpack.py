"""A rank-major bucket back into tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from overlap.ops.slots import PackSlot


@torch.no_grad()
def unpack(bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], scale: float) -> None:
    """See ``overlap.ops.unpack``."""
    for tensor, slot in zip(tensors, slots, strict=True):
        if tensor is None or slot.numel == 0:
            continue
        columns = bucket.narrow(1, slot.offset, slot.chunk)
        values = columns.reshape(-1)[: slot.numel].view(tensor.shape)
        tensor.copy_(values if scale == 1.0 else values.float() * scale)
