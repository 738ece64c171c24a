"""How autograd calls the engine.

Hooks are kept by autograd's C++ side, where the garbage collector does not look. They hold a weak reference to the
engine and numbers, nothing of the model: a model that is dropped goes at once, with its graph or without.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from overlap import _compat
from overlap.errors import StateError, message
from overlap.shard.unit import Unit


class Made(NamedTuple):
    """What a graph was made with: it may be used while both are those of now."""

    epoch: int
    """Of the map unit -> slot."""
    generation: int
    """Of the weights."""


class Receiver(Protocol):
    """The engine, as hooks see it; units and parameters by number."""

    def backward_reached(self, unit: int, made: Made) -> None:
        """The gradient of a unit's output is there."""

    def gradient_arrived(self, unit: int, param: int) -> None:
        """Autograd has accumulated the gradient of a parameter."""


def backward_trigger(receiver: Receiver, unit: int, made: Made) -> Callable[..., None]:
    """What to call before a node that made an output of the unit runs backward."""
    return partial(_reach_backward, weakref.ref(receiver), unit, made)


def watch_gradients(receiver: Receiver, units: Sequence[Unit], known: Collection[int] = ()) -> list[RemovableHandle]:
    """Tell the receiver of every gradient, until the handles are removed; parameters ``known`` by id are watched."""
    me = weakref.ref(receiver)
    return [
        _compat.on_accumulated(param.working, partial(_arrive, me, n, k))
        for n, unit in enumerate(units)
        for k, param in enumerate(unit.params)
        if param.trainable and param.working is not None and id(param) not in known
    ]


def _reach_backward(receiver: weakref.ref[Receiver], unit: int, made: Made, *_: object) -> None:
    engine = receiver()
    if engine is None:
        raise StateError(
            message("model", "live until its backward has run", "a deleted model", "keep a reference to it until then")
        )
    engine.backward_reached(unit, made)


def _arrive(receiver: weakref.ref[Receiver], unit: int, param: int, _: Tensor) -> None:
    engine = receiver()
    if engine is not None:
        engine.gradient_arrived(unit, param)


def refuse_unseen(unit: Unit) -> None:
    """A gradient has come from a unit whose backward nobody announced: its slot may hold another unit by now."""
    raise StateError(
        message(
            f"outputs of unit {unit.name!r}",
            "hold their tensors where they can be found: in containers or attributes",
            "a backward that the engine did not see coming, so that its parameters may be gone",
            "return tensors so, or use stage 2",
        )
    )


def refuse_graph(unit: Unit, reason: str) -> None:
    """The saved views of a graph do not show what its forward saw."""
    cure = "run backward of a forward before the next optimizer step"
    raise StateError(message(f"graph of unit {unit.name!r}", "meet the weights it was made with", reason, cure))
