"""Between tensors and a bucket, whichever way the kernel goes: what ``pack`` and ``unpack`` share."""

from array import array
from collections.abc import Sequence

from torch import Tensor

from overlap.ops.cuda_face import routes
from overlap.ops.cuda_face.dims import dims_of
from overlap.ops.cuda_face.dtypes import CODES
from overlap.ops.cuda_face.tables import tables
from overlap.ops.slots import PackSlot, regions


def move(
    kernel: str, tensors: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...], scale: float
) -> None:
    """Launch ``kernel`` over the whole bucket: once per 505 regions (slots, and a gap before the first one)."""
    world, width = bucket.shape
    if bucket.numel() == 0:
        return
    device, stream = routes.place_of(bucket)
    order = [
        tensors[region.grad] if region.grad >= 0 and region.numel > 0 else None
        for region in regions(slots, world, width)
    ]
    table = tables(slots, world, width, tuple(map(dims_of, order)), bucket.device, stream)
    words = array("Q", [0 if tensor is None else tensor.data_ptr() | CODES[tensor.dtype] for tensor in order])
    address, route = words.buffer_info()[0], routes.current()
    for part in table.parts:
        route.move(
            kernel, device, stream, address + 8 * part.first, part.region_count, part.first,
            table.regions, table.dims, part.blocks, part.block_count,
            world, bucket.data_ptr(), width, scale,
        )  # fmt: skip
