"""Lanes that come late on purpose, so that a missing wait gives wrong numbers instead of luck.

On CPU the caller's thread is the compute lane: whatever it submits has happened when it goes on, and a lane that does
not wait for it is never caught. On a device the host runs ahead. ``LaggingComputeLane`` brings that to CPU: submitted
work (pack, update, poison of a freed slot) and recorded events come from a thread of their own, in order.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from overlap.schedule.lanes import Event, Job
from overlap.schedule.lanes_cpu import HostClock, HostEvent, ThreadLane, wait_host

TIMEOUT_S = 30.0

Delay = Callable[[Job], float]
"""Seconds by which a job comes late."""


class LateLane:
    """A thread lane whose jobs sleep before they run."""

    def __init__(self, name: str, delay: Delay, prepare: Callable[[], None]) -> None:
        self.name = name
        self._delay = delay
        self._lane = ThreadLane(name, timeout_s=TIMEOUT_S, prepare=prepare)

    def submit(self, job: Job, waits: Sequence[Event]) -> HostEvent:
        """Queue the job; it sleeps after its waits."""

        def late() -> None:
            time.sleep(self._delay(job))
            if job.run is not None:
                job.run()

        return self._lane.submit(replace(job, run=late), waits)

    def close(self) -> None:
        """End the thread."""
        self._lane.close()


class LaggingComputeLane(LateLane):
    """A compute lane whose tail runs behind the caller."""

    def __init__(self, delay: Delay, prepare: Callable[[], None]) -> None:
        super().__init__("compute", delay, prepare)
        self.clock = HostClock()
        self._last: HostEvent | None = None

    def submit(self, job: Job, waits: Sequence[Event]) -> HostEvent:
        """Queue the job on the tail."""
        self._last = super().submit(job, waits)
        return self._last

    def wait(self, event: Event, label: str) -> bool:
        """The caller waits: module code itself is never late."""
        wait_host(event, TIMEOUT_S, label)
        return True

    def enter(self) -> None:
        """Module code comes after everything submitted, as on a stream."""
        if self._last is not None:
            wait_host(self._last, TIMEOUT_S, "compute tail")
