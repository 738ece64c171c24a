"""What `Faults` make of calls, and how the control channel's come out."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.ranks import Ranks

from overlap.comm.collective import Communicator
from overlap.comm.control import ControlChannel
from overlap.comm.faults import Action, Fault, Faults
from overlap.comm.groups import communicator_for
from overlap.comm.label import current_label, labelled
from overlap.comm.shaped import ShapedCommunicator, ShapedControl
from overlap.errors import DesyncError


def _made(action: Action, call: int = 1) -> list[str]:
    """Calls a, b, c of which one has a fault, as they are made; a result of None says that the caller got its own."""
    made: list[str] = []

    def run() -> str:
        made.append(current_label().shown)
        return "together"

    faults = Faults([Fault("reduce", call, action)])
    for name in "abc":
        with labelled(name):
            result = faults.carry_out(run, "reduce", "here", "alone")
        made += ["alone"] if result == "alone" else []
    return made


def test_a_skipped_call_is_not_made() -> None:
    assert _made("skip") == ["a", "alone", "c"]


def test_a_doubled_call_is_made_twice() -> None:
    assert _made("double") == ["a", "b", "b", "c"]


def test_a_reordered_call_is_made_behind_the_next_one_with_its_own_label() -> None:
    assert _made("reorder") == ["a", "alone", "c", "b"]


def test_a_reordered_call_behind_which_none_comes_is_not_made() -> None:
    assert _made("reorder", call=2) == ["a", "b", "alone"]


def test_an_injected_error_is_raised_once() -> None:
    faults = Faults([Fault("reduce", call=0)])
    with pytest.raises(DesyncError, match="here must complete, but got an injected Fault"):
        faults.carry_out(dict, "reduce", "here", None)
    assert faults.carry_out(lambda: 1, "reduce", "here", None) == 1


def test_kinds_are_counted_apart() -> None:
    faults = Faults([Fault("gather", call=1, action="skip")])
    made = [faults.carry_out(lambda: True, kind, "here", False) for kind in ("gather", "reduce", "gather", "gather")]
    assert made == [True, True, False, True]


METHODS = {
    "plan": lambda channel: channel.agree("plan", "a1"),
    "all_max": lambda channel: channel.all_max(torch.ones(8, dtype=torch.uint8)),
    "gather_object": lambda channel: channel.gather_object("x"),
}


CASES = [(kind, action) for kind in METHODS for action in ("skip", "double", "reorder")]


def _control(cases: list[tuple[str, Action]]) -> list[str]:
    """Side by side, each on a channel of its own: they spend their time in waiting."""
    channels = [ControlChannel(communicator_for(None, f"control {case}", "cpu")) for case in cases]
    with ThreadPoolExecutor(len(cases)) as threads:
        return list(threads.map(_ask, cases, channels))


def _ask(case: tuple[str, Action], inner: ControlChannel) -> str:
    """The same questions on all ranks, of which rank 1 gets one wrong; eight facts are as long as a size."""
    channel = ShapedControl(inner, [Fault(case[0], 0, case[1])] if dist.get_rank() == 1 else [])
    questions: list[Any] = [METHODS[case[0]], *(ask for kind, ask in METHODS.items() if kind != case[0])]
    try:
        for ask in questions:
            ask(channel)
    except DesyncError as error:
        return str(error)
    return ""


def test_ranks_at_different_questions_on_the_control_channel_are_told(ranks: Ranks) -> None:
    by_rank = ranks.fresh(3, _control, CASES, group_timeout_s=2.0)
    for (kind, action), *texts in zip(CASES, *by_rank, strict=True):
        name = "agree('plan')" if kind == "plan" else kind
        assert all("must answer within 2 s" in text for text in texts), (kind, action, texts)
        assert any(f"all_gather (control) of {name}, " in text for text in texts), (kind, action, texts)


def _error_of(comm: Communicator) -> str:
    try:
        comm.all_reduce(torch.ones(100), "reduce")
    except DesyncError as error:
        return str(error)
    return ""


def _last_call_of_rank_1_is_skipped() -> list[str]:
    """Everybody stops at the first error, as a program does."""
    faults = [Fault("reduce", call=1, action="skip")] if dist.get_rank() == 1 else []
    comm = ShapedCommunicator(communicator_for(None, "reduce", "cpu"), fail_on=faults)
    other = communicator_for(None, "gather", "cpu")
    errors = [_error_of(comm), _error_of(comm)]
    return errors if errors[1] else [*errors, _error_of(other)]


def test_a_rank_that_skips_the_last_call_of_a_lane_is_missed_and_raises_on_the_next_lane(ranks: Ranks) -> None:
    texts = ranks.fresh(3, _last_call_of_rank_1_is_skipped, group_timeout_s=1.0)
    for rank in (0, 2):
        first, second = texts[rank]
        assert first == ""
        assert f"rank 1 in all_reduce (reduce), 400 bytes, call 1 on lane 'reduce', as rank {rank} sees it" in second
    assert texts[1][:2] == ["", ""]
    assert "ranks 0, 2 in all_reduce (reduce), 400 bytes, call 0 on lane 'gather', as rank 1 sees it" in texts[1][2]
