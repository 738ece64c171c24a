"""unpack against what torch users write: foreach copies, and FSDP2's split-with-sizes-copy."""

from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor

from overlap import ops
from overlap.bench.case import Case, Peer, dtype_name
from overlap.bench.rows.block import WORLD, Parcel, one_tensor, transformer_block
from overlap.bench.torch_operator import missing_operator, torch_operator
from overlap.bench.verify import differing, poison
from overlap.ops import reference


def unpack(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield a transformer block and one tensor, in one dtype."""
    for parcel in (transformer_block(elements), one_tensor(elements)):
        yield _case(parcel, dtype, device)


def unpack_bytes(numel: int, bucket_bytes: int, tensor_bytes: int) -> int:
    """Each element that is not padding read once and written once."""
    return numel * (bucket_bytes + tensor_bytes)


def _case(parcel: Parcel, dtype: torch.dtype, device: torch.device) -> Case:
    bucket, tensors = parcel.bucket(dtype, device), parcel.tensors(dtype, device)

    def call(face: ModuleType) -> None:
        face.unpack(bucket, tensors, parcel.slots, 1.0)

    def wrong(face: ModuleType) -> int:
        want = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
        reference.unpack(bucket.cpu(), want, parcel.slots, 1.0)
        for tensor in tensors:
            poison(tensor)
        call(face)
        return sum(map(differing, tensors, want))

    moved = unpack_bytes(parcel.numel, dtype.itemsize, dtype.itemsize)
    return Case(
        op="unpack",
        variant=parcel.name,
        dtype=f"{dtype_name(dtype)} -> {dtype_name(dtype)}",
        elements=parcel.numel,
        bytes=moved,
        bound="copy",
        call=call,
        public=lambda: ops.unpack(bucket, tensors, parcel.slots),
        wrong=wrong,
        results=lambda: tensors,
        peers=(_foreach(parcel, bucket, moved), _split_copy(parcel, bucket, moved)),
    )


def _foreach(parcel: Parcel, bucket: Tensor, moved: int) -> Peer:
    operator = torch_operator("_foreach_copy_")
    if operator is None:
        return missing_operator("_foreach_copy_")
    tensors = parcel.tensors(bucket.dtype, bucket.device)
    inside, outside = parcel.pieces(tensors, bucket)
    return Peer("torch._foreach_copy_", lambda: operator(inside, outside), moved, lambda: tensors)


def _split_copy(parcel: Parcel, bucket: Tensor, moved: int) -> Peer:
    """FSDP2's own: from rows without space between the slots."""
    operator = torch_operator("split_with_sizes_copy")
    if operator is None:
        return missing_operator("split_with_sizes_copy")
    tensors = parcel.tensors(bucket.dtype, bucket.device)
    tight = parcel.tight()
    gathered = tight.bucket(bucket.dtype, bucket.device)
    for new, old in zip(tight.pieces(tensors, gathered)[1], parcel.pieces(tensors, bucket)[1], strict=True):
        new.copy_(old)
    chunks = [slot.chunk for slot in tight.slots]
    rows = [tensor.view(WORLD, -1) for tensor in tensors]
    return Peer(
        "torch.split_with_sizes_copy", lambda: operator(gathered, chunks, dim=1, out=rows), moved, lambda: tensors
    )
