import os
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from support.ranks import RankError, Ranks


def _identity(value: int) -> tuple[int, int, int, int]:
    return dist.get_rank(), dist.get_world_size(), value, torch.get_num_threads()


def test_values_come_back_by_rank(ranks: Ranks) -> None:
    assert ranks(3, _identity, 7) == [(rank, 3, 7, 1) for rank in range(3)]


def _pid() -> int:
    return os.getpid()


def test_processes_live_on_between_calls(ranks: Ranks) -> None:
    assert ranks(2, _pid) == ranks(2, _pid)


def _rank_1_raises() -> None:
    if dist.get_rank() == 1:
        raise ValueError("out of range")
    dist.barrier()


def test_the_traceback_of_the_failing_rank_is_shown_and_the_pool_replaced(ranks: Ranks) -> None:
    before = ranks(2, _pid)
    with pytest.raises(RankError, match=r"(?s)rank 1 raised.*in _rank_1_raises.*ValueError: out of range"):
        ranks(2, _rank_1_raises)
    assert not set(before) & set(ranks(2, _pid))


def _dies() -> None:
    if dist.get_rank() == 1:
        os.write(2, b"last words")
        os.abort()
    dist.barrier()


def test_a_rank_that_aborts_is_reported_with_what_it_printed(ranks: Ranks) -> None:
    with pytest.raises(RankError, match=r"(?s)rank . (died|raised)"):
        ranks.fresh(2, _dies)


def _is_late() -> None:
    time.sleep(30 * dist.get_rank())


def test_late_ranks_are_named_and_ended(ranks: Ranks) -> None:
    with pytest.raises(RankError, match=r"no answer from rank \[1\] in time"):
        ranks.fresh(2, _is_late, timeout_s=0.5)


def _warns() -> None:
    warnings.warn("careless", stacklevel=1)


def test_warnings_are_errors(ranks: Ranks) -> None:
    with pytest.raises(RankError, match="UserWarning: careless"):
        ranks.fresh(1, _warns)
