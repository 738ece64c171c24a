"""What goes into and comes out of each unit in a forward, in the order in which it happens.

    root                input                                  output
      blocks.0                input  output
      blocks.1                                input  output
                        ------------------------------------->  the first event that differs names its cause

A unit whose input agrees and whose output does not has gone wrong itself. If its input differs already, the code
around it has: that of the unit it was called from, the event's ``owner``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from overlap.engine.tree import tensors_in


class Event(NamedTuple):
    """A unit was entered or left."""

    unit: str
    owner: str
    """Whose code made the tensors."""
    what: Literal["input", "output"]
    tensors: tuple[Tensor, ...]
    """Copies: what comes later may change the originals."""


class Recorder:
    """Watches the units of one model by ordinary forward hooks."""

    def __init__(self, units: Mapping[str, nn.Module]) -> None:
        """Hook the modules.

        Args:
            units: by fully qualified name, "" for the whole model.
        """
        self._events: list[Event] | None = None
        self._inside: list[str] = []
        for name, module in units.items():
            module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
            module.register_forward_hook(partial(self._leave, name))

    @contextmanager
    def recording(self) -> Iterator[list[Event]]:
        """Record what runs inside; not what backward recomputes later."""
        self._events, self._inside = [], []
        try:
            yield self._events
        finally:
            self._events = None

    def _enter(self, unit: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._events is not None:
            owner = self._inside[-1] if self._inside else unit
            self._events.append(Event(unit, owner, "input", _copies((args, kwargs))))
            self._inside.append(unit)

    def _leave(self, unit: str, module: nn.Module, args: Any, output: Any) -> None:
        if self._events is not None:
            self._events.append(Event(unit, unit, "output", _copies(output)))
            self._inside.pop()


def _copies(value: Any) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().clone() for tensor in tensors_in(value))
