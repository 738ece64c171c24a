"""Programs that differ by rank: in the number of batches, or in units. An error, never a hang, abort or wrong rows."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from support.clear_error import GRAMMAR
from support.models import loss_of, seeded
from support.pair import Sharded, shard_blocks
from support.ranks import Ranks

import overlap

TIMEOUT_S = 2.0
MARGIN_S = 6.0  # on a machine that is busy with other tests


_kept: list[Sharded] = []


def _rank_0_has_a_batch_more(options: dict[str, Any], *, keep: bool = True) -> tuple[str, float]:
    pair = Sharded(**options)
    for _ in range(2):
        pair.step()
    if pair.rank != 0:  # the process stays, and is silent
        _kept.extend([pair] if keep else [])
        return "", 0.0
    start = time.monotonic()
    with pytest.raises(overlap.DesyncError) as caught:
        pair.step()
    pair.engine.close()
    return str(caught.value), time.monotonic() - start


@pytest.mark.parametrize(
    ("world", "stage", "call"),
    [
        (2, 0, "all_reduce (replicated) of 'blocks.2' (reduced:0)"),
        (2, 2, "all_gather (gather) of '(root)' (gathered:0)"),
        (3, 3, "all_gather (gather) of '(root)' (gathered:0)"),
    ],
)
def test_a_rank_with_one_batch_more_names_those_that_have_ended(
    ranks: Ranks, world: int, stage: int, call: str
) -> None:
    text, seconds = ranks.fresh(world, _rank_0_has_a_batch_more, {"stage": stage}, group_timeout_s=TIMEOUT_S)[0]
    others = "rank 1" if world == 2 else "ranks 1, 2"
    assert re.fullmatch(GRAMMAR, text), text
    assert text.startswith(f"{others} in {call}, ")
    assert f"must answer within 2 s, but got no answer: nothing was heard of {others}" in text
    assert "the same number of batches?" in text
    assert seconds < TIMEOUT_S + MARGIN_S


def test_the_option_ends_the_wait_where_it_is_shorter_than_the_group_s(ranks: Ranks) -> None:
    text, seconds = ranks.fresh(2, _rank_0_has_a_batch_more, {"timeout_s": 1.5}, group_timeout_s=60)[0]
    assert text.startswith("rank 1 in all_gather (gather) of '(root)' (gathered:0), ")
    assert "must answer within 1.5 s" in text
    assert seconds < 1.5 + MARGIN_S


def test_a_rank_that_has_let_go_of_the_model_need_not_be_waited_for(ranks: Ranks) -> None:
    text, seconds = ranks.fresh(2, _rank_0_has_a_batch_more, {}, keep=False, group_timeout_s=60)[0]
    assert text.startswith("rank 1 in all_gather (gather) of '(root)' (gathered:0), ")
    assert "it has let go of the model" in text
    assert seconds < MARGIN_S


def _goes_its_own_way() -> str:
    """All blocks have one size: only their names keep rows of the one from landing in the other."""
    model = shard_blocks(seeded())
    with pytest.raises(overlap.DesyncError) as caught:
        loss_of(model, 0, 0, ((0, 1, 2), (0, 2, 1))[dist.get_rank()]).backward()
    return str(caught.value)


def test_ranks_that_enter_units_of_one_size_in_another_order_are_told_which(ranks: Ranks) -> None:
    texts = ranks.fresh(2, _goes_its_own_way, group_timeout_s=TIMEOUT_S)
    for text, mine, other in zip(texts, ("blocks.1", "blocks.2"), ("blocks.2", "blocks.1"), strict=True):
        assert f" in all_gather (gather) of '{mine}'" in text
        assert re.search(rf"rank \d is in call \d+ on lane 'gather', all_gather \(gather\) of '{other}'", text)


PROGRAM = """
import os, torch.distributed as dist
from datetime import timedelta
from support.pair import Sharded
dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ["TIMEOUT_S"])))
pair = Sharded()
for _ in range(3 - dist.get_rank()):
    pair.step()
"""


def _start(rank: int, port: int) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    where = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TIMEOUT_S": 30}
    texts = {name: str(value) for name, value in where.items()}
    env = {**os.environ, **texts, "PYTHONPATH": tests, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stderr=subprocess.PIPE, text=True)


def test_a_program_whose_peer_has_ended_exits_with_the_error_and_is_not_aborted() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [_start(rank, port) for rank in (0, 1)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 0], errors
    assert "DesyncError: rank 1 in all_gather (gather) of '(root)'" in errors[0]
