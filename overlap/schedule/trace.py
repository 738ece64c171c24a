"""What the compute lane did: segments between positions, and stalls.

    FORWARD root   FORWARD 1            FORWARD_END 1
    |-- forward root --|-stall 1-|-- forward 1 --|-- forward root --| ...

A segment ends where the next position, stall or packed bucket begins, so segments never overlap.
"""

from __future__ import annotations

from typing import Any

from overlap.schedule.lanes import Clock, Job, Watch
from overlap.schedule.op import ENTRY_OF_EXIT, Kind


class ComputeTrace:
    """Turns positions into spans of the compute lane."""

    def __init__(self, clock: Clock, watch: Watch) -> None:
        self._clock, self._watch = clock, watch
        self._open: list[tuple[str, str]] = []
        self._since: Any = None

    def begin(self) -> None:
        """A pass starts; what was open belongs to an abandoned one."""
        self._open = []
        self._since = None

    def enter(self, kind: str, unit: str) -> None:
        """A unit's compute starts; the enclosing unit's goes on after it."""
        self.pause()
        self._open.append((str(kind), unit))
        self._since = self._clock.mark()

    def leave(self, exit_kind: Kind, unit: str) -> None:
        """A unit's compute ends; its label may be below others that ended without telling."""
        self.pause()
        label = (str(ENTRY_OF_EXIT[exit_kind]), unit)
        if label in self._open:
            self._open.remove(label)
        self._since = self._clock.mark() if self._open else None

    def mark(self) -> Any:
        """Now, on the compute lane."""
        return self._clock.mark()

    def pause(self) -> None:
        """Close the running segment; the next one starts here."""
        now = self._clock.mark()
        self._close_segment(now)
        self._since = now if self._open else None

    def stall(self, unit: str, start: Any) -> None:
        """Compute stood still from ``start`` until now, waiting for ``unit``."""
        self._close_segment(start)
        now = self._clock.mark()
        self._watch.span("compute", Job("", "stall", unit), start, now)
        self._since = now if self._open else None

    def _close_segment(self, end: Any) -> None:
        if self._since is not None and self._open:
            kind, unit = self._open[-1]
            self._watch.span("compute", Job("", kind, unit), self._since, end)

    def resume(self) -> None:
        """A job of the compute lane has run; the enclosing segment starts again."""
        self._since = self._clock.mark() if self._open else None

    def finish(self) -> None:
        """The pass is over."""
        self.pause()
        self._open = []
        self._since = None
