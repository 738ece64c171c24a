"""Asking other ranks where they stand is for better words only: it may fail, and costs no time that matters."""

import time
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from support.carriers import carried_by
from support.ranks import Ranks

from overlap import _compat
from overlap.comm.calls import CallLog
from overlap.comm.groups import communicator_for, lane_group
from overlap.comm.report import PATIENCE_S, where_they_stand
from overlap.errors import DesyncError

TIMEOUT_S = 1.0


def test_without_a_process_group_nobody_is_asked() -> None:
    start = time.monotonic()
    assert where_they_stand(CallLog("group", 0, "reduce"), [1]) == {}
    assert time.monotonic() - start < PATIENCE_S


def _error() -> tuple[str, float]:
    comm = carried_by("gloo", lambda: communicator_for(None, "reduce", "cpu"))
    if comm.rank == 1:
        return "", 0.0
    start = time.monotonic()
    with pytest.raises(DesyncError) as caught:
        comm.all_reduce(torch.ones(100), "reduce")
    return str(caught.value), time.monotonic() - start


def _without_a_store() -> tuple[str, float]:
    lane_group(None, "reduce", backend="gloo")  # which needs the store
    with patch.object(_compat, "default_store", side_effect=dist.DistNetworkError("gone")):
        return _error()


def _with_a_store_that_hangs() -> tuple[str, float]:
    lane_group(None, "reduce", backend="gloo")  # which needs the store
    with patch.object(_compat, "default_store", lambda: time.sleep(30)):
        return _error()


@pytest.mark.parametrize("run", [_without_a_store, _with_a_store_that_hangs])
def test_an_error_does_not_depend_on_the_store(ranks: Ranks, run: object) -> None:
    text, seconds = ranks.fresh(2, run, group_timeout_s=TIMEOUT_S)[0]
    assert text.startswith("rank 1 in all_reduce (reduce), 400 bytes, call 0 on lane 'reduce', as rank 0 sees it, must")
    assert "nothing was heard of rank 1 [Timed out waiting 1000ms" in text
    assert seconds < TIMEOUT_S + 5
