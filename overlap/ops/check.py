"""Argument checks shared by every face, so that the faces themselves hold only the op."""

from collections.abc import Sequence

import torch
from torch import Tensor

from overlap.errors import ConfigError, message
from overlap.ops.slots import PackSlot, regions

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FP32 = (torch.float32,)


def check_dtype(name: str, tensor: Tensor, allowed: Sequence[torch.dtype]) -> None:
    """Refuse a dtype outside ``allowed``."""
    if tensor.dtype not in allowed:
        rule = "have dtype " + " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise ConfigError(message(name, rule, tensor.dtype, "cast it or choose another dtype in the config"))


def check_flat(name: str, tensor: Tensor, like: Tensor, allowed: Sequence[torch.dtype]) -> None:
    """Refuse anything but a contiguous 1-D tensor with the length and device of ``like``."""
    check_dtype(name, tensor, allowed)
    if tensor.dim() != 1 or tensor.numel() != like.numel() or not tensor.is_contiguous():
        rule = f"be a contiguous 1-D tensor of {like.numel()} elements"
        got = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
        raise ConfigError(message(name, rule, got, "pass the flat buffer, or a slice of it"))
    check_device(name, tensor, like)


def check_device(name: str, tensor: Tensor, like: Tensor) -> None:
    """Refuse a tensor on another device than ``like``."""
    if tensor.device != like.device:
        raise ConfigError(message(name, f"be on {like.device}", tensor.device, "move it there once, outside the step"))


def check_scalar(name: str, tensor: Tensor | None, like: Tensor, allowed: Sequence[torch.dtype]) -> None:
    """Refuse anything but None or a one-element tensor on the device of ``like``."""
    if tensor is None:
        return
    check_dtype(name, tensor, allowed)
    check_device(name, tensor, like)
    if tensor.numel() != 1:
        raise ConfigError(message(name, "have one element", tuple(tensor.shape), "pass a scalar tensor"))


def check_pack(grads: Sequence[Tensor | None], bucket: Tensor, slots: tuple[PackSlot, ...]) -> None:
    """Refuse buckets, slots and gradients that do not fit together."""
    check_dtype("bucket", bucket, FLOATS)
    if bucket.dim() != 2 or not bucket.is_contiguous():
        got = f"shape {tuple(bucket.shape)}, strides {bucket.stride()}"
        raise ConfigError(message("bucket", "be contiguous [world, width]", got, "allocate it whole"))
    if len(grads) != len(slots):
        rule = f"have one entry per slot ({len(slots)})"
        raise ConfigError(message("grads", rule, len(grads), "pass None for a parameter without gradient"))
    regions(slots, bucket.shape[0], bucket.shape[1])
    for index, (grad, slot) in enumerate(zip(grads, slots, strict=True)):
        if grad is not None and not _fits(grad, slot, bucket):
            raise _misfit(f"grads[{index}]", grad, slot, bucket)


def _fits(grad: Tensor, slot: PackSlot, bucket: Tensor) -> bool:
    return grad.numel() == slot.numel and grad.dtype in FLOATS and grad.device == bucket.device


def _misfit(name: str, grad: Tensor, slot: PackSlot, bucket: Tensor) -> ConfigError:
    """Find out what is wrong, away from the path that every step takes."""
    check_dtype(name, grad, FLOATS)
    check_device(name, grad, bucket)
    rule = f"have its slot's {slot.numel} elements"
    return ConfigError(message(name, rule, tuple(grad.shape), "rebuild the slots for these shapes"))


def check_step(step: int) -> None:
    """Refuse a step that would divide by a zero bias correction."""
    if step < 1:
        raise ConfigError(message("step", "count from 1", step, "increment it before the update"))
