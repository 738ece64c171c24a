"""Module code of units as nested ranges for a profiler: what compute runs between its jobs has a name, too.

    forward (root) |-----------------------------------------|
    forward 1           |-----------|
    aten ops          x   x x x x x   x

Enter and leave come from the thread that runs the code: the caller's in forward, autograd's in backward.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from overlap.schedule.op import ENTRY_OF_EXIT, Kind

ScopeOf = Callable[[str, str], AbstractContextManager[Any]]
"""Kind and unit -> the range to be in meanwhile; a range may be entered again and again."""


class ComputeRanges:
    """The ranges that are open now."""

    def __init__(self, scope_of: ScopeOf) -> None:
        self._scope_of = scope_of
        self._scopes: dict[tuple[str, str], AbstractContextManager[Any]] = {}
        self._open: list[tuple[str, str]] = []

    def enter(self, kind: Kind, unit: str) -> None:
        """A unit's module code starts."""
        label = (str(kind), unit)
        if label not in self._scopes:
            self._scopes[label] = self._scope_of(*label)
        self._scopes[label].__enter__()
        self._open.append(label)

    def leave(self, exit_kind: Kind, unit: str) -> None:
        """A unit's module code ends, and that of units which ended without telling."""
        label = (str(ENTRY_OF_EXIT[exit_kind]), unit)
        if label in self._open:
            while self._pop() != label:
                pass

    def close(self) -> None:
        """A pass begins or is over: nothing stays open."""
        while self._open:
            self._pop()

    def _pop(self) -> tuple[str, str]:
        label = self._open.pop()
        self._scopes[label].__exit__(None, None, None)
        return label
