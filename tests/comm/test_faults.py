"""A rank that falls out of step ends in an error that names it: never in a hang, a crash or wrong numbers."""

import os
import time

import pytest
import torch
from support.carriers import carried_by
from support.ranks import RankError, Ranks

from overlap.comm.collective import Communicator
from overlap.comm.groups import communicator_for, lane_group
from overlap.comm.process_group import ProcessGroupCommunicator
from overlap.errors import DesyncError
from overlap.shard.piece import Piece

TIMEOUT_S = 1.0
by_each_carrier = pytest.mark.parametrize("carrier", ["memory", "gloo"])
CALL = "all_reduce (reduce), 400 bytes, call 0 on lane 'reduce'"


def _outcome(comm: Communicator, numel: int = 100) -> tuple[str, float]:
    """The error of one all-reduce, and how long it took to come."""
    start = time.monotonic()
    try:
        comm.all_reduce(torch.ones(numel), "reduce")
    except DesyncError as error:
        return str(error), time.monotonic() - start
    return "", time.monotonic() - start


def _rank_1_is_silent(carrier: str) -> tuple[str, float]:
    comm = carried_by(carrier, lambda: communicator_for(None, "reduce", "cpu"))
    if comm.rank == 1:
        time.sleep(2 * TIMEOUT_S)
        return "", 0.0
    return _outcome(comm)


@by_each_carrier
def test_a_silent_peer_is_named_within_the_timeout(ranks: Ranks, carrier: str) -> None:
    results = ranks.fresh(3, _rank_1_is_silent, carrier, group_timeout_s=TIMEOUT_S)
    for me in (0, 2):
        text, seconds = results[me]
        assert f"rank 1 in {CALL}, as rank {me} sees it, must answer within 1 s, but got no answer" in text
        assert seconds < TIMEOUT_S + 1


def _rank_1_dies(carrier: str) -> tuple[str, float]:
    comm = carried_by(carrier, lambda: communicator_for(None, "reduce", "cpu"))
    if comm.rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), 9)
    text, seconds = _outcome(comm)
    assert "rank 1 in all_reduce" in text
    assert seconds < 5
    raise ValueError("seen the death of rank 1")


@by_each_carrier
def test_a_dead_peer_is_named_at_once(ranks: Ranks, carrier: str) -> None:
    with pytest.raises(RankError, match=r"seen the death of rank 1|died with exit code -9") as caught:
        ranks.fresh(2, _rank_1_dies, carrier, group_timeout_s=60)
    assert "AssertionError" not in str(caught.value)


def _rank_1_has_another_size(how: str) -> list[str]:
    """Of which gloo itself would end the process, or leave the end of a tensor as it is."""
    group = lane_group(None, "reduce", backend="gloo")
    by_torch = how == "torch"
    comm: Communicator = ProcessGroupCommunicator(group, "reduce")
    if not by_torch:
        comm = carried_by(how, lambda: communicator_for(None, "reduce", "cpu"))
    other = ProcessGroupCommunicator(lane_group(None, "other", backend="gloo")) if by_torch else None
    texts = [_outcome(comm, numel=100 + comm.rank)[0]]
    if other is not None:
        with pytest.raises(DesyncError, match=r"broadcast \(init\), 40[04] bytes") as caught:
            other.broadcast(torch.ones(100 + comm.rank), 0, "init")
        texts.append(str(caught.value))
    return texts


@pytest.mark.parametrize("how", ["memory", "gloo", "torch"])
def test_different_sizes_end_in_an_error_and_not_in_an_abort(ranks: Ranks, how: str) -> None:
    results = ranks.fresh(2, _rank_1_has_another_size, how, group_timeout_s=TIMEOUT_S)
    for rank, texts in enumerate(results):
        for text in texts:
            assert "must answer within" in text
            assert f"{404 - 4 * rank} bytes, waiting for rank {rank}" in text  # what the other one is in


def _ranks_issue_different_collectives(carrier: str) -> str:
    comm = carried_by(carrier, lambda: communicator_for(None, "reduce", "cpu"))
    try:
        if comm.rank == 0:
            comm.reduce_scatter(torch.ones(2, 8), torch.ones(8), "reduce")
        else:
            comm.all_gather([Piece(torch.ones(8), torch.ones(16))], "gather")
    except DesyncError as error:
        return str(error)
    return ""


@by_each_carrier
def test_collectives_of_the_same_size_do_not_take_each_others_data(ranks: Ranks, carrier: str) -> None:
    texts = ranks.fresh(2, _ranks_issue_different_collectives, carrier, group_timeout_s=TIMEOUT_S)
    assert "rank 1 in reduce_scatter (reduce)" in texts[0]
    assert "rank 0 in all_gather (gather)" in texts[1]


def _call_again_after_a_failure(carrier: str) -> tuple[str, float]:
    comm = carried_by(carrier, lambda: communicator_for(None, "reduce", "cpu"))
    if comm.rank == 0:
        _outcome(comm)
    else:
        time.sleep(1.3 * TIMEOUT_S)
    return _outcome(comm)


@by_each_carrier
def test_a_lane_that_failed_once_keeps_failing_at_once(ranks: Ranks, carrier: str) -> None:
    for text, seconds in ranks.fresh(2, _call_again_after_a_failure, carrier, group_timeout_s=TIMEOUT_S):
        assert text
        assert seconds < TIMEOUT_S


def _process_group_with_a_silent_peer() -> tuple[str, float]:
    comm = ProcessGroupCommunicator(lane_group(None, "reduce"), "reduce")
    if comm.rank == 1:
        time.sleep(2 * TIMEOUT_S)
        return "", 0.0
    return _outcome(comm)


def test_torchs_own_collectives_raise_the_same_kind_of_error(ranks: Ranks) -> None:
    text, _ = ranks.fresh(2, _process_group_with_a_silent_peer, group_timeout_s=TIMEOUT_S)[0]
    assert text.startswith(f"rank 1 in {CALL}, as rank 0 sees it, must answer within 1 s, but got no answer")
