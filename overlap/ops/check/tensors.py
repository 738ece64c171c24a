"""Checks of one tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from overlap.errors import ConfigError, message

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FP32 = (torch.float32,)
FP64 = (torch.float64,)
FLAGS = (torch.float32, torch.float64, torch.int32, torch.bool)


def check_tensor(name: str, tensor: object) -> None:
    """Refuse what is no strided tensor."""
    if not isinstance(tensor, Tensor):
        raise ConfigError(message(name, "be a torch.Tensor", shown(tensor), "pass a tensor"))
    if tensor.layout != torch.strided:
        raise ConfigError(message(name, "have a strided layout", tensor.layout, "call .to_dense() on it"))


def shown(value: object) -> str:
    """Return type and, where it is short, value of what was passed instead of a tensor."""
    kind, text = type(value).__name__, repr(value)
    return text if value is None else kind if len(text) > 20 else f"{text} ({kind})"


def check_sequence(name: str, tensors: object) -> None:
    """Refuse what is no list or tuple of tensors."""
    if not isinstance(tensors, Sequence) or isinstance(tensors, str):
        raise ConfigError(message(name, "be a list or tuple of tensors", shown(tensors), "pass a list"))


def is_readable(tensor: Tensor) -> bool:
    """Whether the elements lie in memory as they are: allocated, and not waiting to be negated."""
    return tensor.layout == torch.strided and not tensor.is_neg() and (tensor.data_ptr() != 0 or tensor.numel() == 0)


def check_memory(name: str, tensor: Tensor) -> None:
    """Refuse a tensor whose storage was freed or never there, or whose elements are negated when read."""
    if is_readable(tensor):
        return
    if tensor.is_neg():
        cure = "call .resolve_neg() on it"
        raise ConfigError(message(name, "hold its own values", "a lazily negated view", cure))
    cure = "allocate it, gather it before the call, or pass .to_local() of a DTensor"
    raise ConfigError(message(name, "have memory", f"none for shape {tuple(tensor.shape)}", cure))


def check_dtype(name: str, tensor: Tensor, allowed: Sequence[torch.dtype]) -> None:
    """Refuse what is no tensor, and a dtype outside ``allowed``."""
    check_tensor(name, tensor)
    if tensor.dtype not in allowed:
        rule = "have dtype " + " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise ConfigError(message(name, rule, tensor.dtype, "cast it"))


def check_device(name: str, tensor: Tensor, like: Tensor) -> None:
    """Refuse a tensor on another device than ``like``."""
    if tensor.device != like.device:
        raise ConfigError(message(name, f"be on {like.device}", tensor.device, "move it there once, outside the step"))


def check_flat(name: str, tensor: Tensor, like: Tensor, allowed: Sequence[torch.dtype], size: int = -1) -> None:
    """Refuse anything but a contiguous 1-D tensor of ``size`` elements (those of ``like``) on its device."""
    check_dtype(name, tensor, allowed)
    size = like.numel() if size < 0 else size
    if tensor.dim() != 1 or tensor.numel() != size or not tensor.is_contiguous():
        rule = f"be a contiguous 1-D tensor of {size} elements"
        raise ConfigError(message(name, rule, _layout(tensor), "pass the flat buffer, or a slice of it"))
    check_device(name, tensor, like)
    check_memory(name, tensor)


def check_one(name: str, tensor: Tensor | None, like: Tensor, allowed: Sequence[torch.dtype]) -> None:
    """Refuse anything but None or a one-element tensor on the device of ``like``."""
    if tensor is None:
        return
    check_dtype(name, tensor, allowed)
    check_device(name, tensor, like)
    if tensor.numel() != 1:
        raise ConfigError(message(name, "have one element", _layout(tensor), "pass a scalar tensor"))
    check_memory(name, tensor)


def check_norm(name: str, tensor: Tensor, like: Tensor) -> None:
    """Refuse anything but a sum and a flag: contiguous fp64 ``[2]``."""
    check_dtype(name, tensor, FP64)
    check_device(name, tensor, like)
    if tuple(tensor.shape) != (2,) or not tensor.is_contiguous():
        raise ConfigError(message(name, "be a contiguous [2] tensor", _layout(tensor), "allocate two fp64"))
    check_memory(name, tensor)


def check_bucket(bucket: Tensor) -> None:
    """Refuse anything but contiguous ``[world, width]``."""
    check_dtype("bucket", bucket, FLOATS)
    if bucket.dim() != 2 or not bucket.is_contiguous():
        raise ConfigError(message("bucket", "be contiguous [world, width]", _layout(bucket), "allocate it whole"))
    check_memory("bucket", bucket)


def check_own_memory(name: str, tensor: Tensor) -> None:
    """Refuse a tensor some of whose elements share memory, such as an expanded one."""
    if tensor.is_contiguous():
        return
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < reach:
            rule = "have memory of its own for each element"
            raise ConfigError(message(name, rule, _layout(tensor), "pass what it was expanded from, or a clone"))
        reach += (size - 1) * stride


def _layout(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
