"""No call outlives the patience of those who wait for it: a lane's thread must not keep the process from ending."""

import signal
import threading
import time

import pytest
import torch
from support.carriers import carried_by
from support.ranks import Ranks

from overlap.comm.calls import CallLog, interrupt_calls
from overlap.comm.groups import communicator_for
from overlap.errors import DesyncError
from overlap.schedule.lanes import Job
from overlap.schedule.lanes_cpu import HostEvent, ThreadLane, wait_host

PATIENCE_S = 0.05
LONG_S = 30.0


def _never_answered(lane: ThreadLane) -> HostEvent:
    """A call that ends when it is interrupted, as one over gloo does."""
    stop, begun = threading.Event(), threading.Event()

    def call() -> None:
        with CallLog("group", 0, lane.name).call("all_gather (gather)", 8, lambda after_s: stop.set()):
            begun.set()
            assert stop.wait(LONG_S)
            raise DesyncError("rank 1 is silent")

    event = lane.submit(Job("gathered:0", "gather", run=call), ())
    assert begun.wait(LONG_S)
    return event


def test_a_wait_that_takes_too_long_gets_the_error_of_the_call_that_it_waited_for() -> None:
    lane = ThreadLane("gather")
    event = _never_answered(lane)
    with pytest.raises(DesyncError, match="rank 1 is silent"):
        wait_host(event, PATIENCE_S, "blocks.0")
    lane.close()


def test_ctrl_c_ends_the_call_too() -> None:
    lane = ThreadLane("gather")
    event = _never_answered(lane)
    threading.Timer(PATIENCE_S, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        wait_host(event, LONG_S, "blocks.0")
    start = time.monotonic()
    lane.close()
    assert time.monotonic() - start < LONG_S / 2


def test_a_lane_closes_although_nobody_answers_its_call() -> None:
    lane = ThreadLane("gather", timeout_s=PATIENCE_S)
    _never_answered(lane)
    lane.close()
    assert "overlap-gather" not in {thread.name for thread in threading.enumerate()}


def test_work_that_is_merely_slow_is_waited_for_when_its_lane_closes() -> None:
    lane, done = ThreadLane("gather", timeout_s=PATIENCE_S), []
    lane.submit(Job("gathered:0", "gather", run=lambda: done.append(time.sleep(4 * PATIENCE_S))), ())
    lane.close()
    assert done


_kept = []


def _silent_peer(carrier: str) -> tuple[str, float]:
    comm = carried_by(carrier, lambda: communicator_for(None, "reduce", "cpu"))
    if comm.rank == 1:
        _kept.append(comm)  # a rank that lets go of it is gone, and the other need not wait
        return "", 0.0
    threading.Timer(0.3, interrupt_calls, (threading.get_ident(), 0.3)).start()
    start = time.monotonic()
    with pytest.raises(DesyncError) as caught:
        comm.all_reduce(torch.ones(100), "reduce")
    return str(caught.value), time.monotonic() - start


@pytest.mark.parametrize("carrier", ["memory", "gloo"])
def test_a_call_is_ended_from_another_thread(ranks: Ranks, carrier: str) -> None:
    text, seconds = ranks.fresh(2, _silent_peer, carrier, group_timeout_s=60)[0]
    call = "all_reduce (reduce), 400 bytes, call 0 on lane 'reduce'"
    assert text.startswith(f"rank 1 in {call}, as rank 0 sees it, must answer within 0.3 s, but got no answer")
    assert seconds < 10
