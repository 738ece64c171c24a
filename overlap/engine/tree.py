"""Tensors inside the inputs and outputs of a module: lists, tuples, dicts, dataclasses, attributes of any object.

Tensors are found everywhere, and replaced (cast) in the containers that can be built anew; other objects are passed on.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (str, bytes, bool, int, float, complex, torch.dtype, torch.device, torch.Size, type(None))
_CLOSURES = (FunctionType, MethodType, BuiltinFunctionType, GeneratorType, partial)
# What these hold is not what a module takes or returns.
_CLOSED = (*_CLOSURES, type, nn.Module, ModuleType)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of a nested value, depth first."""
    if isinstance(value, Tensor):
        return [value]
    if type(value) is tuple and all([isinstance(each, Tensor) for each in value]):  # noqa: C419 - once a unit and step
        return list(value)
    return [each for each in _walk(value) if isinstance(each, Tensor)]


def hides_something(value: Any) -> bool:
    """Whether a nested value holds functions or generators, which may hold tensors that nobody finds."""
    return any(isinstance(each, _CLOSURES) for each in _walk(value))


def _walk(value: Any) -> Iterator[Any]:
    seen: set[int] = set()
    ahead = [value]
    while ahead:
        value = ahead.pop()
        if isinstance(value, Tensor):
            yield value
        elif not isinstance(value, _PLAIN) and id(value) not in seen:
            yield value
            if not isinstance(value, _CLOSED):
                seen.add(id(value))
                ahead += reversed([*_items(value)])


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    slots = (name for cls in type(value).__mro__ for name in _slots_of(cls))
    named = (getattr(value, name) for name in slots if hasattr(value, name))
    return (*getattr(value, "__dict__", {}).values(), *named)


def _slots_of(cls: type) -> Iterable[str]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nesting with every tensor replaced; containers without a changed tensor are passed on as they are."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return _rebuilt(value, {key: map_tensors(item, change) for key, item in value.items()}, value.values())
    if isinstance(value, list | tuple):
        return _rebuilt_sequence(value, [map_tensors(item, change) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        new = {name: map_tensors(item, change) for name, item in old.items()}
        changed = any(new[name] is not item for name, item in old.items())
        return dataclasses.replace(value, **new) if changed else value
    return value


def _rebuilt(old: dict[Any, Any], new: dict[Any, Any], items: Any) -> Any:
    changed = any(mine is not theirs for mine, theirs in zip(new.values(), items, strict=True))
    if not changed:
        return old
    rebuilt = copy.copy(old)  # keeps the class, a default factory, attributes
    for key, item in new.items():
        rebuilt[key] = item
    return rebuilt


def _rebuilt_sequence(old: list[Any] | tuple[Any, ...], new: list[Any]) -> Any:
    if all(mine is theirs for mine, theirs in zip(new, old, strict=True)):
        return old
    if hasattr(old, "_fields"):  # a namedtuple takes its fields one by one
        return type(old)(*new)
    return type(old)(new)


def cast_floating(value: Any, dtype: torch.dtype) -> Any:
    """Cast floating tensors of a nested value; the rest is passed on as it is."""
    return map_tensors(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
