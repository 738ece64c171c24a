"""Events on CPU: what a lane's thread makes true, and what somebody who waits for it in vain gets to see."""

from __future__ import annotations

import threading
from collections.abc import Callable

from overlap.comm.calls import running_calls
from overlap.errors import DesyncError, OverlapError, message
from overlap.schedule.lanes import Event

GRACE_S = 2.0
"""What a call that is interrupted needs at most to find its words."""


class HostEvent:
    """A future without a value: true, or failed with the error of its job.

    A bare lock, held until the event is true: one is made for every job, and a ``threading.Event`` costs 20 times as
    much to make.
    """

    __slots__ = ("_gate", "_interrupt", "error", "name")

    def __init__(self, name: str, interrupt: Callable[[float], bool] = lambda after_s: False) -> None:
        """Not true yet.

        Args:
            name: what has finished once it is true.
            interrupt: ends what is in its way, after so many seconds; False if there was nothing.
        """
        self.name = name
        self.error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()
        self._interrupt = interrupt

    def set(self, error: BaseException | None = None) -> None:
        """Make it true; with ``error``, waiting for it raises instead."""
        self.error = error
        self._gate.release()

    def done(self) -> bool:
        """Whether it is true or failed."""
        return not self._gate.locked()

    def wait(self, timeout_s: float, label: str) -> None:
        """Block the calling thread until it is true.

        Raises:
            DesyncError: not true within ``timeout_s`` seconds, or its job failed.
        """
        try:
            arrived = self._pass(timeout_s)
        except BaseException:  # Ctrl-C: nothing may keep the process from ending
            self._interrupt(timeout_s)
            raise
        if not arrived and not (self._interrupt(timeout_s) and self._pass(GRACE_S)):
            raise _overdue(self.name, timeout_s, label)
        if self.error is not None:
            raise _as_overlap_error(self.error, self.name)

    def _pass(self, timeout_s: float) -> bool:
        """Go through the gate and leave it open for others."""
        if not self._gate.locked():
            return True
        if arrived := self._gate.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            self._gate.release()
        return arrived


def _overdue(event: str, timeout_s: float, label: str) -> DesyncError:
    calls = running_calls()
    return DesyncError(
        message(
            f"{label or event} (event {event})",
            f"finish within {timeout_s:g} s",
            f"no answer: this rank {calls}" if calls else "no answer",
            "check that every rank runs the same model and the same number of batches",
        )
    )


def _as_overlap_error(error: BaseException, event: str) -> Exception:
    if isinstance(error, OverlapError):
        return error.with_traceback(None)
    failure = DesyncError(
        message(f"event {event}", "become true", f"{type(error).__name__}: {error}", "see the cause above")
    )
    failure.__cause__ = error
    return failure


def wait_host(event: Event, timeout_s: float, label: str) -> None:
    """Wait for an event of this backend; events that are already true cost one check."""
    if isinstance(event, HostEvent):
        event.wait(timeout_s, label)
