"""pack against what torch users write: foreach copies, a concatenation, FSDP2's chunk-cat."""

from collections.abc import Callable, Iterator
from types import ModuleType

import torch
from torch import Tensor

from overlap import ops
from overlap.bench import memory
from overlap.bench.case import Case, Peer, dtype_name
from overlap.bench.rows.block import WORLD, Parcel, one_tensor, transformer_block
from overlap.bench.torch_operator import missing_operator, torch_operator
from overlap.bench.verify import differing, poison
from overlap.ops import reference


def pack(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield a transformer block as it is and averaged over the ranks, and one tensor; into its dtype and into fp32."""
    for bucket_dtype in dict.fromkeys((dtype, torch.float32)):
        block = transformer_block(elements)
        yield _case(block, 1.0, dtype, bucket_dtype, device)
        yield _case(block, 1.0 / WORLD, dtype, bucket_dtype, device)
        yield _case(one_tensor(elements), 1.0, dtype, bucket_dtype, device)


def pack_bytes(numel: int, bucket_numel: int, grad_bytes: int, bucket_bytes: int) -> int:
    """Each gradient read once, each element of the bucket written once."""
    return numel * grad_bytes + bucket_numel * bucket_bytes


def _case(parcel: Parcel, scale: float, dtype: torch.dtype, bucket_dtype: torch.dtype, device: torch.device) -> Case:
    grads = parcel.tensors(dtype, device)
    bucket = parcel.bucket(bucket_dtype, device)

    def call(face: ModuleType) -> None:
        face.pack(grads, bucket, parcel.slots, scale, False)

    def wrong(face: ModuleType) -> int:
        poison(bucket)
        want = torch.empty_like(bucket, device="cpu")
        reference.pack([grad.cpu() for grad in grads], want, parcel.slots, scale, False)
        call(face)
        return differing(bucket, want)

    return Case(
        op="pack",
        variant=parcel.name if scale == 1.0 else f"{parcel.name}, mean",
        dtype=f"{dtype_name(dtype)} -> {dtype_name(bucket_dtype)}",
        elements=parcel.numel,
        bytes=pack_bytes(parcel.numel, bucket.numel(), dtype.itemsize, bucket_dtype.itemsize),
        bound="copy",
        call=call,
        public=lambda: ops.pack(grads, bucket, parcel.slots, scale=scale),
        wrong=wrong,
        results=lambda: parcel.pieces(grads, bucket)[1],
        peers=_peers(parcel, grads, memory.empty_like(bucket).zero_().view_as(bucket), scale),
    )


def _peers(parcel: Parcel, grads: list[Tensor], bucket: Tensor, scale: float) -> tuple[Peer, ...]:
    """Three ways to fill ``bucket``, a second one. None takes a scale: that is one more pass over it."""
    moved = pack_bytes(parcel.numel, bucket.numel(), grads[0].element_size(), bucket.element_size())
    moved += 0 if scale == 1.0 else 2 * bucket.nbytes
    inside, outside = parcel.pieces(grads, bucket)
    whole, flat = _row_major(parcel, grads, bucket), bucket.view(-1)
    tight = parcel.tight()
    packed = flat[: WORLD * tight.width].view(WORLD, tight.width)

    def peer(name: str, fill: Callable[[Callable[..., object]], object], results: list[Tensor]) -> Peer:
        operator = torch_operator(name)
        if operator is None:
            return missing_operator(name)

        def run() -> None:
            fill(operator)
            if scale != 1.0:
                bucket.mul_(scale)

        return Peer(f"torch.{name}", run, moved, lambda: results)

    return (
        peer("_foreach_copy_", lambda operator: operator(outside, inside), outside),
        peer("cat", lambda operator: operator(whole, out=flat), outside),
        # FSDP2's own: no space between the gradients.
        peer("_chunk_cat", lambda operator: operator(grads, 0, WORLD, out=packed), tight.pieces(grads, packed)[1]),
    )


def _row_major(parcel: Parcel, grads: list[Tensor], bucket: Tensor) -> list[Tensor]:
    """Return the stretches and the zeros between them that make up the bucket, front to back."""
    parts: list[Tensor] = []
    flats = [grad.view(-1) for grad in grads]
    for row in range(WORLD):
        for flat, slot, end in zip(flats, parcel.slots, parcel.ends, strict=True):
            stretch = flat[row * slot.chunk : (row + 1) * slot.chunk]
            parts += [stretch, flat.new_zeros(end - slot.offset - stretch.numel())]
    return parts
