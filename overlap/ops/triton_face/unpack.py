"""A rank-major bucket back into tensors: kernels/unpack.py."""

from collections.abc import Sequence

from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.unpack import unpack_kernel
from overlap.ops.slots import PackSlot
from overlap.ops.triton_face.launching import EXACT, on, stream_of
from overlap.ops.triton_face.tables import STRIDED_LIMIT, layout, tensor_table


def unpack(bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], scale: float) -> None:
    """See ``overlap.ops.unpack``. Strided tensors of 2^31 elements or more are filled through a contiguous copy."""
    world, width = bucket.shape
    if bucket.numel() == 0:
        return
    block, device = launch.UNPACK.block, bucket.device
    targets = [
        tensor if tensor is None or tensor.is_contiguous() or tensor.numel() < STRIDED_LIMIT
        else tensor.new_empty(tensor.shape)
        for tensor in tensors
    ]  # fmt: skip
    with on(device):
        stream = stream_of(device)
        tables = layout(slots, world, width, block, device, stream)
        unpack_kernel[(tables.row_blocks, world)](
            tensor_table(targets, tables.order, device, stream), tables.regions, tables.blocks, bucket, width, scale,
            SCALED=scale != 1.0, BLOCK=block, num_warps=launch.UNPACK.num_warps, **EXACT,
        )  # fmt: skip
    for tensor, target in zip(tensors, targets, strict=True):
        if tensor is not None and target is not None and target is not tensor:
            tensor.copy_(target)
