"""Results do not depend on the schedule: not a bit, whatever is sharded and whenever it moves."""

from functools import cache
from typing import Any

import pytest
import torch
from support.ranks import Ranks
from support.training import Run, same_bits, train

STEPS = 5
SCHEDULES: dict[str, dict[str, Any]] = {
    "stage 0": {"stage": 0},
    "stage 1": {"stage": 1},
    "stage 2": {"stage": 2},
    "prefetch 2": {"prefetch": 2},
    "prefetch 3": {"prefetch": 3},
    "small buckets": {"bucket_bytes": 30_000},
    "a bucket per parameter": {"bucket_bytes": 1},
    "lanes off": {"lanes": "inline"},
    "parameters stay after forward": {"reshard_after_forward": False},
    "poisoned": {"poison": True},
    "watched": {"timeline": True, "nvtx": True},
}


@cache
def _plain(ranks: Ranks, world: int, dtype: torch.dtype | None) -> Run:
    return ranks(world, _train, {"param_dtype": dtype})[0]


def _train(options: dict[str, Any]) -> Run:
    chosen = {"stage": 3, **options}
    return train(chosen.pop("stage"), steps=STEPS, optimizer="overlap", **chosen)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("world", "dtype"), [(2, None), (3, torch.bfloat16)])
def test_same_bits(ranks: Ranks, world: int, dtype: torch.dtype | None, schedule: str) -> None:
    run = ranks(world, _train, {"param_dtype": dtype, **SCHEDULES[schedule]})[0]
    plain = _plain(ranks, world, dtype)
    assert run.losses == plain.losses
    assert same_bits(run.params, plain.params)
    assert run.deviations == 0


def test_watching_does_not_change_the_order_of_ops(ranks: Ranks) -> None:
    assert ranks(2, _train, SCHEDULES["watched"])[0].issued == _plain(ranks, 2, None).issued
