"""Between tensors and rank-major buckets.

Traffic is given per element; ``g`` and ``b`` are the bytes of the tensor's and the bucket's dtype. Both ops are bound
by memory, on GPUs and CPUs, so it is also the time.

Tensors are read as they lie in memory: resolve lazily negated views (``tensor.is_neg()``) with ``resolve_neg()``; C++
cannot see that they are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from overlap.ops.faces import face_of
from overlap.ops.library import words_of
from overlap.ops.slots import PackSlot


def pack(
    grads: Sequence[Tensor | None],
    bucket: Tensor,
    slots: tuple[PackSlot, ...],
    *,
    scale: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Flatten, scale and cast many gradients into one rank-major bucket.

    Element ``k`` (in row-major order) of gradient ``i`` goes to ``bucket[k // chunk_i, offset_i + k % chunk_i]``,
    multiplied by ``scale`` in fp32 and rounded once. Every other element of the bucket becomes 0. With
    ``accumulate`` the product is added to the bucket in fp32, and gaps, padding and missing gradients are left alone.

    Traffic: ``g`` read + ``b`` written (``g + 2b`` with accumulate). One launch on CUDA; the CUDA C++ face, whose
    addresses travel inside the launch, makes one for up to 505 tensors.

    Args:
        grads: fp32, bf16 or fp16 tensors of any shape and strides; None stands for zeros.
        bucket: contiguous ``[world, width]``, fp32, bf16 or fp16.
        slots: tuple of ``PackSlot``, where each gradient goes; any order, no overlap.
        scale: multiplies every gradient; finite.
        accumulate: add to the bucket instead of overwriting it.

    Raises:
        ConfigError: dtypes, devices, shapes or slots that do not fit together.
    """
    if is_compiling():
        torch.ops.overlap.pack(grads, bucket, words_of(slots), scale, accumulate)
    else:
        face_of(bucket).pack(grads, bucket, slots, scale, accumulate)


def unpack(
    bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], *, scale: float = 1.0
) -> None:
    """Copy one rank-major bucket into many tensors, scaled and cast: ``pack`` backwards.

    Element ``k`` (in row-major order) of tensor ``i`` becomes ``bucket[k // chunk_i, offset_i + k % chunk_i]``,
    multiplied by ``scale`` in fp32 and rounded once. A scale of 1 multiplies nothing: where the dtypes agree, bits
    move unchanged.

    Traffic: ``b`` read + ``g`` written. One launch on CUDA; the CUDA C++ face makes one for up to 505 tensors.

    Args:
        bucket: contiguous ``[world, width]``, fp32, bf16 or fp16.
        tensors: fp32, bf16 or fp16 tensors of any shape and strides, each element in memory of its own; None skips
            its slot.
        slots: tuple of ``PackSlot``, where each tensor comes from; any order, no overlap.
        scale: multiplies every element; finite.

    Raises:
        ConfigError: dtypes, devices, shapes or slots that do not fit together, or an expanded tensor.
    """
    if is_compiling():
        present = [(tensor, slot) for tensor, slot in zip(tensors, slots, strict=True) if tensor is not None]
        wanted, places = [tensor for tensor, _ in present], tuple(slot for _, slot in present)
        torch.ops.overlap.unpack(bucket, wanted, words_of(places), scale)
    else:
        face_of(bucket).unpack(bucket, tensors, slots, scale)
