"""Lanes on CPU: a worker thread per communication lane, and the caller's thread for compute.

PyTorch and gloo release the GIL in the work itself, so a lane thread makes progress while forward and backward run.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache

from overlap.comm.calls import interrupt_calls
from overlap.nvtx import Scope
from overlap.schedule.events_cpu import GRACE_S, HostEvent, wait_host
from overlap.schedule.lanes import DONE, Event, Job, Watch, refuse_closed, run_for_unit, run_marked


@cache
def stall(unit: str) -> Scope:
    """Around a wait of the caller's thread: the range of the module it happens in would count it as compute."""
    return Scope("host", unit, phase="stall")


class HostClock:
    """Marks are host monotonic nanoseconds."""

    def mark(self) -> int:
        """Now."""
        return time.monotonic_ns()

    def nanoseconds(self, mark: int) -> int:
        """The mark itself."""
        return mark


def run_watched(job: Job, lane: str, watch: Watch | None, run: Callable[[Job], None]) -> None:
    """Run one job in the calling thread, if there is any work in it, and report its span."""
    if job.run is None:
        return
    if watch is None:
        run(job)
        return
    start = time.monotonic_ns()
    run(job)
    watch.span(lane, job, start, time.monotonic_ns())


class ThreadLane:
    """One worker thread: waits and work of its jobs happen there, in order."""

    def __init__(
        self,
        name: str,
        *,
        watch: Watch | None = None,
        timeout_s: float = 600.0,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Start the thread.

        Args:
            name: lane name, also the thread's.
            watch: receives a span per job.
            timeout_s: how long a job may wait for one event.
            prepare: runs first in the thread, e.g. to switch autograd off.
        """
        self.name = name
        self._watch, self._timeout_s, self._prepare = watch, timeout_s, prepare
        self._jobs: queue.SimpleQueue[tuple[Job, Sequence[Event], HostEvent] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"overlap-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: Job, waits: Sequence[Event]) -> HostEvent:
        """Queue the job; the event fails if the job or one of its waits does."""
        if self._closed:
            refuse_closed(self.name)
        event = HostEvent(job.event, self._interrupt)
        self._jobs.put((job, waits, event))
        return event

    def close(self) -> None:
        """Let queued jobs finish, then end the thread."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            if self._thread is not threading.current_thread():  # the last reference may have died in a job of ours
                self._join()

    def _join(self) -> None:
        self._thread.join(self._timeout_s)
        while self._thread.is_alive():  # a call that nobody answers, and then perhaps another one
            self._interrupt(self._timeout_s)
            self._thread.join(GRACE_S)

    def _interrupt(self, after_s: float) -> bool:
        assert self._thread.ident is not None
        return interrupt_calls(self._thread.ident, after_s)

    def _work(self) -> None:
        if self._prepare is not None:
            self._prepare()
        while (item := self._jobs.get()) is not None:
            job, waits, event = item
            event.set(self._attempt(job, waits))
            # Tensors of a finished job must not live until the next one arrives.
            del item, job, waits, event

    def _attempt(self, job: Job, waits: Sequence[Event]) -> BaseException | None:
        try:
            for wait in waits:
                if wait is not DONE:
                    wait_host(wait, self._timeout_s, job.label)
            run_watched(job, self.name, self._watch, run_for_unit)
        except BaseException as error:  # it is raised again where the event is waited for
            return error
        return None


class InlineLane:
    """No lane at all: a job runs in the caller at submission. The serial schedule to compare with."""

    _run = staticmethod(run_for_unit)

    def __init__(self, name: str, *, watch: Watch | None = None, timeout_s: float = 600.0) -> None:
        self.name = name
        self._watch, self._timeout_s = watch, timeout_s
        self._closed = False

    def submit(self, job: Job, waits: Sequence[Event]) -> Event:
        """Wait, run, return a true event."""
        if self._closed:
            refuse_closed(self.name)
        for wait in waits:
            if wait is not DONE:
                wait_host(wait, self._timeout_s, job.label)
        run_watched(job, self.name, self._watch, self._run)
        return DONE

    def close(self) -> None:
        """Nothing is queued; take no more."""
        self._closed = True


class HostComputeLane(InlineLane):
    """The caller's thread: submitted work runs at once, waiting blocks."""

    _run = staticmethod(run_marked)  # a norm is of all units, under the name of one of them

    def __init__(self, *, watch: Watch | None = None, timeout_s: float = 600.0) -> None:
        super().__init__("compute", watch=watch, timeout_s=timeout_s)
        self.clock = HostClock()

    def wait(self, event: Event, label: str) -> bool:
        """Block until the event is true; True unless it already was."""
        if event.done():
            wait_host(event, self._timeout_s, label)  # raises what failed it
            return False
        with stall(label):
            wait_host(event, self._timeout_s, label)
        return True

    def enter(self) -> None:
        """Submitted work has already run."""
