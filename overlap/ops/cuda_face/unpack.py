"""A rank-major bucket back into tensors: csrc/cuda/unpack.cu."""

from collections.abc import Sequence

from torch import Tensor

from overlap.ops.cuda_face.dtypes import NAMES
from overlap.ops.cuda_face.move import move
from overlap.ops.slots import PackSlot


def unpack(bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], scale: float, /) -> None:
    """See ``overlap.ops.unpack``."""
    move(f"unpack_{NAMES[bucket.dtype]}", tensors, bucket, slots, scale)
