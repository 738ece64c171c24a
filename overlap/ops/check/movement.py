"""``pack`` and ``unpack``."""

from collections.abc import Sequence

from torch import Tensor

from overlap.errors import ConfigError, message
from overlap.ops.check.tensors import (
    FLOATS,
    check_bucket,
    check_device,
    check_dtype,
    check_memory,
    check_own_memory,
    check_sequence,
    is_readable,
)
from overlap.ops.scalars import check_finite, check_switch
from overlap.ops.slots import PackSlot, check_kind, regions


def pack(
    grads: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...], scale: float, accumulate: bool
) -> None:
    """Refuse buckets, slots and gradients that do not fit together."""
    _check_slots("grads", grads, bucket, slots)
    check_finite("scale", scale)
    check_switch("accumulate", accumulate)
    for index, (grad, slot) in enumerate(zip(grads, slots, strict=True)):
        if grad is not None and not _fits(grad, slot, bucket):
            raise _misfit(f"grads[{index}]", grad, slot, bucket)


def unpack(bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], scale: float) -> None:
    """Refuse buckets, slots and tensors that do not fit together, and tensors that overlap themselves."""
    _check_slots("tensors", tensors, bucket, slots)
    check_finite("scale", scale)
    for index, (tensor, slot) in enumerate(zip(tensors, slots, strict=True)):
        if tensor is None:
            continue
        if not _fits(tensor, slot, bucket):
            raise _misfit(f"tensors[{index}]", tensor, slot, bucket)
        check_own_memory(f"tensors[{index}]", tensor)


def _check_slots(name: str, tensors: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...]) -> None:
    check_bucket(bucket)
    if not isinstance(slots, tuple):
        raise ConfigError(message("slots", "be a tuple", type(slots).__name__, "build it once, outside the step"))
    check_sequence(name, tensors)
    if len(tensors) != len(slots):
        rule = f"have one entry per slot ({len(slots)})"
        raise ConfigError(message(name, rule, len(tensors), "pass None where there is no tensor"))
    for index, slot in enumerate(slots):
        check_kind(index, slot)
    regions(slots, bucket.shape[0], bucket.shape[1])


def _fits(tensor: Tensor, slot: PackSlot, bucket: Tensor) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.numel() == slot.numel
        and tensor.dtype in FLOATS
        and tensor.device == bucket.device
        and is_readable(tensor)
    )


def _misfit(name: str, tensor: Tensor, slot: PackSlot, bucket: Tensor) -> ConfigError:
    """Find out what is wrong, away from the path that every step takes."""
    check_dtype(name, tensor, FLOATS)
    check_device(name, tensor, bucket)
    if tensor.numel() == slot.numel:
        check_memory(name, tensor)
    rule = f"have its slot's {slot.numel} elements"
    return ConfigError(message(name, rule, tuple(tensor.shape), "rebuild the slots for these shapes"))
