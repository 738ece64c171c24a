"""Gradients into a rank-major bucket: kernels/pack.py."""

from collections.abc import Sequence

from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.pack import pack_kernel
from overlap.ops.slots import PackSlot
from overlap.ops.triton_face.launching import EXACT, on, stream_of
from overlap.ops.triton_face.tables import STRIDED_LIMIT, layout, tensor_table


def pack(
    grads: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...], scale: float, accumulate: bool
) -> None:
    """See ``overlap.ops.pack``. Strided gradients are read in place, below 2^31 elements; larger are copied first."""
    world, width = bucket.shape
    if bucket.numel() == 0:
        return
    block, device = launch.PACK.block, bucket.device
    readable = [grad if grad is None or grad.numel() < STRIDED_LIMIT else grad.contiguous() for grad in grads]
    with on(device):
        stream = stream_of(device)
        tables = layout(slots, world, width, block, device, stream)
        pack_kernel[(tables.row_blocks, world)](
            tensor_table(readable, tables.order, device, stream), tables.regions, tables.blocks, bucket, width, scale,
            ACCUMULATE=accumulate, BLOCK=block, num_warps=launch.PACK.num_warps, **EXACT,
        )  # fmt: skip
