"""Idle time that the host is to blame for: the device had nothing to do because nothing was launched yet.

host      .........|launch|
device ===|xxxxxxxx...|====      x: late; what follows is the launch's own latency
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from overlap.profiling.breakdown import Cover
from overlap.profiling.intervals import subtract, union
from overlap.profiling.recording import OTHER, Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How far the host was ahead of the device."""

    late_ns: int
    """Idle time before the launch of what came next."""
    idle_ns: int
    """All idle time."""
    queued_ns: int
    """Median time from launch to start: small means that the device waits for the host."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, times in µs."""
        return {"late_us": self.late_ns / 1000, "idle_us": self.idle_ns / 1000, "queued_us": self.queued_ns / 1000}


def lateness(activities: Sequence[Activity], found: Cover) -> Lateness | None:
    """Of one rank; None where launches were not recorded, and where the host computes itself."""
    launched = [one for one in activities if one.launched_ns is not None and one.category != OTHER]
    if not launched or any(one.thread and one.launched_ns is None for one in activities):
        return None
    launched.sort(key=lambda one: one.start_ns)
    starts = [one.start_ns for one in launched]
    late = total = 0
    for start, end in subtract([found.window], union([*found.working, *found.copy])):
        total += end - start
        following = bisect_left(starts, end)
        if following < len(launched):
            late += max(min(end, _launch(launched[following])) - start, 0)
    queued = median(one.start_ns - _launch(one) for one in launched)
    return Lateness(late_ns=late, idle_ns=total, queued_ns=round(queued))


def _launch(one: Activity) -> int:
    assert one.launched_ns is not None
    return one.launched_ns
