"""Tensors inside the inputs and outputs of a module: tensors, lists, tuples, dicts, namedtuples, dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a nested value, depth first."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def hides_something(value: Any) -> bool:
    """Whether a nested value holds objects that this module cannot look into."""
    if isinstance(value, dict):
        return any(map(hides_something, value.values()))
    if isinstance(value, list | tuple):
        return any(map(hides_something, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(hides_something(getattr(value, field.name)) for field in dataclasses.fields(value))
    return not isinstance(value, Tensor | str | bytes | bool | int | float | complex | torch.dtype | torch.Size | None)


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
