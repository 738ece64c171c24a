"""What a process knows of its own calls, and makes of what another one tells about its."""

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from overlap.comm.calls import CallLog, earlier_trouble, interrupt_calls, running_calls
from overlap.comm.label import Label, current_label, labelled
from overlap.comm.standing import tell, understand
from overlap.schedule.lanes import Job
from overlap.schedule.lanes_cpu import HostComputeLane, InlineLane, ThreadLane


def _log(lane: str = "reduce", calls: int = 0) -> CallLog:
    log = CallLog("group", 0, lane)
    for number in range(calls):
        with labelled(f"'blocks.{number}'"), log.call("all_reduce (reduce)", 8):
            pass
    return log


def _fail(log: CallLog, waits_for: int) -> None:
    with suppress(ValueError), log.call("all_reduce (reduce)", 8):
        log.waits_for = waits_for
        raise ValueError("lost")


def test_a_log_says_where_its_communicator_stands() -> None:
    log = _log()
    assert str(log) == "has made no call on lane 'reduce'"
    with labelled("'blocks.0'"), log.call("all_reduce (reduce)", 8) as call:
        log.waits_for = 3
        text = "is in call 0 on lane 'reduce', all_reduce (reduce) of 'blocks.0', 8 bytes, waiting for rank 3"
        assert str(log) == text
        assert running_calls().startswith(f"{text} for 0.")
    assert (call.number, running_calls()) == (0, "")
    assert str(log) == "is past call 0 on lane 'reduce', all_reduce (reduce) of 'blocks.0', 8 bytes"
    _fail(log, waits_for=1)
    assert str(log) == "has stopped in call 1 on lane 'reduce', all_reduce (reduce), 8 bytes, waiting for rank 1"


def test_the_oldest_trouble_is_told() -> None:
    first, second = _log("gather"), _log("control")
    _fail(first, waits_for=2)
    with second.call("all_gather (control)", 1):
        assert earlier_trouble(second) == str(first)
    assert earlier_trouble(first) == ""


def test_another_rank_s_call_is_quoted() -> None:
    theirs = _log(calls=3)
    with theirs.call("all_gather (gather)", 4):
        told = tell()
    assert _heard(told, calls=4) == "is in call 3 on lane 'reduce', all_gather (gather), 4 bytes"


def test_a_rank_that_is_past_the_call_is_sought_on_its_other_lanes() -> None:
    theirs, elsewhere = _log(calls=1), CallLog("control group", 0, "control")
    with elsewhere.call("all_gather (control)", 1):
        told = tell()
    here = "is past call 0 on lane 'reduce', all_reduce (reduce) of 'blocks.0', 8 bytes"
    assert _heard(told, calls=2) == f"{here}, and is in call 0 on lane 'control', all_gather (control), 1 bytes"
    assert theirs.latest is not None


def test_a_rank_without_the_communicator_is_told_so() -> None:
    assert _heard("[]", calls=1) == "has no communicator for lane 'reduce'"


def test_what_was_told_before_later_answers_is_too_old() -> None:
    theirs = _log(calls=1)
    told = tell()
    assert _heard(told, calls=2) is not None
    assert _heard(told, calls=3) is None
    assert theirs.latest is not None


def _heard(told: str, calls: int) -> str | None:
    """As a rank understands it whose latest call is that many."""
    return understand(told, _log(calls=calls))


def test_calls_of_one_thread_are_interrupted() -> None:
    told: list[float] = []
    log, other = _log("gather"), _log("reduce")
    with log.call("all_gather (gather)", 8, told.append):
        assert not interrupt_calls(-1, 1.0)
        assert interrupt_calls(threading.get_ident(), 2.5)
    assert told == [2.5]
    assert not interrupt_calls(threading.get_ident(), 1.0)
    assert other.latest is None


def _label_in(lane: ThreadLane | InlineLane, job: Callable[..., Job]) -> Label:
    seen: list[Label] = []
    lane.submit(job(run=lambda: seen.append(current_label())), ())
    lane.close()
    return seen[0]


@pytest.mark.parametrize("kind", [ThreadLane, InlineLane])
def test_lanes_say_what_their_calls_are_for(kind: type[ThreadLane] | type[InlineLane]) -> None:
    block = _label_in(kind("gather"), lambda run: Job("gathered:3#2", "gather", "blocks.2", run=run))
    assert block == Label("'blocks.2' (gathered:3)", "'blocks.2' (gathered:3)")
    root = _label_in(kind("gather"), lambda run: Job("gathered:0", "gather", "", run=run))
    assert root.shown == "'(root)' (gathered:0)"


def test_compute_says_nothing_for_the_norm_of_all_units() -> None:
    assert _label_in(HostComputeLane(), lambda run: Job("norm", "norm", "blocks.0", run=run)) == Label()


def test_labels_nest_and_may_be_matched_by_less_than_they_show() -> None:
    with labelled("'a'"):
        with labelled("agree('plan')", "agree"):
            assert current_label() == Label("agree('plan')", "agree")
        assert current_label() == Label("'a'", "'a'")
    assert current_label() == Label()
