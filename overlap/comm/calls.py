"""Where each communicator of this process stands: the call that it is in, by number. No torch here."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakSet

from overlap.comm.label import Label, current_label


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as its communicator counts them: all ranks make the same ones in the same order.

    Attributes:
        number: from 0, by communicator.
        op: collective and kind, as in ``all_gather (gather)``.
        nbytes: of the whole tensor, as in `overlap.comm.volume`.
        label: what it is for.
    """

    number: int
    op: str
    nbytes: int
    label: Label

    @property
    def name(self) -> str:
        """``all_gather (gather) of 'blocks.3', 4096 bytes``."""
        return f"{self.op}{f' of {self.label.shown}' if self.label.shown else ''}, {self.nbytes} bytes"


class CallLog:
    """The latest call of one communicator. Its lane writes; whoever reports an error reads.

    Args:
        group: name of the process group, the same on all its ranks.
        number: tells the communicators of one group apart.
        lane: name of the lane.
    """

    def __init__(self, group: str, number: int, lane: str) -> None:
        self.group, self.number, self.lane = group, number, lane
        self.latest: Call | None = None
        self.running = self.failed = False
        self.began = time.monotonic()
        self.waits_for: int | None = None  # global rank
        self.thread: int | None = None  # of the latest call
        self.interrupt: Callable[[float], None] | None = None  # ends the running call
        with _lock:
            _logs.add(self)

    @contextmanager
    def call(self, op: str, nbytes: int, interrupt: Callable[[float], None] | None = None) -> Iterator[Call]:
        """Number the call that is made inside.

        Args:
            op: as in `Call`.
            nbytes: as in `Call`.
            interrupt: makes it raise, from any thread; is told how many seconds there were for it.
        """
        number = 0 if self.latest is None else self.latest.number + 1
        self.latest, self.failed, self.waits_for = Call(number, op, nbytes, current_label()), True, None
        self.running, self.began = True, time.monotonic()
        self.thread, self.interrupt = threading.get_ident(), interrupt
        try:
            yield self.latest
            self.failed = False
        finally:
            self.running, self.interrupt = False, None

    def __str__(self) -> str:
        """For messages, behind "rank 1" or "this rank"."""
        if self.latest is None:
            return f"has made no call on lane '{self.lane}'"
        state = "is in" if self.running else "has stopped in" if self.failed else "is past"
        waiting = f", waiting for rank {self.waits_for}" if self.failed and self.waits_for is not None else ""
        return f"{state} call {self.latest.number} on lane '{self.lane}', {self.latest.name}{waiting}"


_lock = threading.Lock()
_logs: WeakSet[CallLog] = WeakSet()


def all_logs() -> list[CallLog]:
    """Those of all communicators that this process still has, by the begin of their latest call."""
    with _lock:
        return sorted(_logs, key=lambda log: log.began)


def running_calls() -> str:
    """The calls that this process is in, for messages: ``is in call 3 ...``; empty when there is none."""
    return " and ".join(f"{log} for {time.monotonic() - log.began:.1f} s" for log in all_logs() if log.running)


def earlier_trouble(log: CallLog) -> str:
    """The oldest call of this process that is in trouble since before the latest one of `log`, for messages."""
    first = next((other for other in all_logs() if other.running or other.failed), log)
    return "" if first is log else str(first)


def interrupt_calls(thread: int, after_s: float) -> bool:
    """Make the calls of a thread raise, since they have had `after_s` seconds; whether there were any."""
    stops = [log.interrupt for log in all_logs() if log.running and log.thread == thread]
    for stop in stops:
        if stop is not None:
            stop(after_s)
    return any(stops)
