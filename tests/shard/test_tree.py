"""Tensors inside the inputs and outputs of modules (``overlap.engine.tree``)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from overlap.engine.tree import cast_floating, map_tensors, tensors_in


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Output:
    loss: Any
    extra: Any = None
    derived: int = field(init=False, default=3)


@dataclass(frozen=True)
class Frozen:
    value: Any


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda tensor: tensor,
    "list": lambda tensor: [tensor, "text"],
    "tuple": lambda tensor: (None, tensor),
    "dict": lambda tensor: {"a": tensor, "b": 1},
    "ordered dict": lambda tensor: OrderedDict(a=tensor),
    "namedtuple": lambda tensor: Pair(1, tensor),
    "dataclass": lambda tensor: Output(tensor, "text"),
    "frozen dataclass": Frozen,
    "nested": lambda tensor: {"a": [Pair((tensor,), 2.0), Output(Frozen([tensor]))]},
}
containers = pytest.mark.parametrize("wrap", CONTAINERS.values(), ids=CONTAINERS)


def one() -> Tensor:
    return torch.ones(2)


@containers
def test_every_tensor_is_found(wrap: Callable[[Any], Any]):
    tensor = one()
    found = list(tensors_in(wrap(tensor)))
    assert found
    assert all(each is tensor for each in found)


@containers
def test_every_tensor_is_replaced_in_a_container_of_the_same_type(wrap: Callable[[Any], Any]):
    old = wrap(one())
    new = map_tensors(old, lambda tensor: tensor + 1)
    assert type(new) is type(old)
    assert all(each.tolist() == [2, 2] for each in tensors_in(new))
    assert len(list(tensors_in(new))) == len(list(tensors_in(old)))
    assert all(each.tolist() == [1, 1] for each in tensors_in(old))


@containers
def test_what_does_not_change_is_passed_on_as_it_is(wrap: Callable[[Any], Any]):
    value = wrap(one())
    assert map_tensors(value, lambda tensor: tensor) is value


def test_unchanged_parts_of_a_changed_value_stay_the_same_objects():
    whole, number = [one()], [torch.ones(2, dtype=torch.int64)]
    old = {"float": whole, "int": number, "text": "text"}
    new = cast_floating(old, torch.bfloat16)
    assert new["int"] is number
    assert new["float"] is not whole


@pytest.mark.parametrize("value", [None, 1, "text", {1, 2}, Output, object()])
def test_values_without_tensors_are_passed_on(value: object):
    assert map_tensors(value, lambda tensor: pytest.fail("no tensor here")) is value
    assert list(tensors_in(value)) == []


def test_order_is_depth_first():
    tensors = [torch.tensor(n) for n in range(4)]
    value = [tensors[0], {"a": (tensors[1], Frozen(tensors[2]))}, tensors[3]]
    assert [int(tensor) for tensor in tensors_in(value)] == [0, 1, 2, 3]


def test_casting_changes_floating_tensors_only():
    value = (one(), torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool))
    assert [tensor.dtype for tensor in cast_floating(value, torch.bfloat16)] == [
        torch.bfloat16,
        torch.int64,
        torch.bool,
    ]


def test_casting_to_the_dtype_that_is_there_changes_nothing():
    value = [one(), {"a": one()}]
    assert cast_floating(value, torch.float32) is value


def test_casting_keeps_the_graph():
    tensor = one().requires_grad_()
    cast_floating({"a": tensor}, torch.float64)["a"].sum().backward()
    assert tensor.grad.tolist() == [1, 1]
