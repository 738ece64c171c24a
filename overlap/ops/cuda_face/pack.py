"""Gradients into a rank-major bucket: csrc/cuda/pack.cu."""

from collections.abc import Sequence

from torch import Tensor

from overlap.ops.cuda_face.dtypes import NAMES
from overlap.ops.cuda_face.move import move
from overlap.ops.slots import PackSlot


def pack(
    grads: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...], scale: float, accumulate: bool, /
) -> None:
    """See ``overlap.ops.pack``."""
    move(f"{'pack_add' if accumulate else 'pack'}_{NAMES[bucket.dtype]}", grads, bucket, slots, scale)
