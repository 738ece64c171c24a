"""Where autograd tells that a unit's backward is about to run: the nodes that made its outputs.

Nodes are watched, not tensors: an in-place change of an output gives the tensor another node and keeps the old one in
the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from overlap import _compat
from overlap.engine.tree import hides_something, tensors_in
from overlap.errors import StateError, message
from overlap.shard.unit import Unit


def watch_outputs(outputs: Any, inputs: Any, unit: Unit, trigger: Callable[..., None]) -> None:
    """Call ``trigger`` when the gradient of an output is there.

    Raises:
        StateError: the outputs may carry a graph in objects that cannot be looked into, and without being told the
            engine would not bring back the unit's parameters for its backward.
    """
    # An input that is passed through was made by another unit's node. (Nodes are alike as long as somebody has them.)
    passed = [node for tensor in tensors_in(inputs) for node in _nodes(tensor)]
    nodes = [node for tensor in tensors_in(outputs) for node in _nodes(tensor) if node not in passed]
    for node in nodes:
        node.register_prehook(trigger)
    gone = unit.slot is not None and not unit.resident
    # What is trained tells by its gradient that its backward was not announced; what is frozen does not.
    if gone and not isinstance(outputs, Tensor) and (not nodes or unit.frozen) and hides_something(outputs):
        raise StateError(
            message(
                f"outputs of unit {unit.name!r}",
                "hold their tensors where they can be found: in containers or attributes",
                f"a {type(outputs).__name__} with functions or generators",
                "return tensors so, or use stage 2",
            )
        )


def _nodes(tensor: Tensor) -> list[Any]:
    """The node that made a tensor; for a view also its base's, which survives an in-place change of the view."""
    node = tensor.grad_fn
    if node is None:
        return []
    base = _compat.base_of(tensor)
    of_base = base.grad_fn if base is not None else None
    return [node] if of_base is None else [node, of_base]
