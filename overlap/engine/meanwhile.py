"""Two things at once, where ranks may be in either and each holds up the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from overlap.errors import OverlapError
from overlap.schedule.lanes import Job
from overlap.schedule.lanes_cpu import ThreadLane

T = TypeVar("T")


def meanwhile(agree: Callable[[], T], work: Callable[[], None], timeout_s: float) -> T:
    """Agree with other ranks in a thread of its own, and work here.

        rank 0   backward ends early: its last buckets leave here | agrees in the thread
        rank 1   held up in backward until they do                ........................ | agrees

    Args:
        agree: a collective between hosts; what it returns is the result.
        work: what other ranks may wait for before they come to agree.
        timeout_s: how long to wait for an agreement.

    Raises:
        DesyncError: no agreement; or what ``work`` raises, once the thread has ended.
    """
    found: list[T] = []
    lane = ThreadLane("settle", timeout_s=timeout_s)
    event = lane.submit(Job("settled", "settle", run=lambda: found.append(agree())), ())
    try:
        work()
        event.wait(timeout_s, "settle")
    except BaseException:
        with suppress(OverlapError):
            event.wait(0.0, "settle")  # nobody will answer: end the call
        raise
    finally:
        lane.close()
    return found[0]
