"""Any stage on any number of ranks trains as one process does on the whole batch."""

from functools import cache

import pytest
import torch
from support.ranks import Ranks
from support.training import Run, train

STEPS = 30


@cache
def _reference(ranks: Ranks) -> Run:
    return ranks(1, _train, "single", "torch", None)[0]


def _train(contender: str | int, optimizer: str, dtype: torch.dtype | None) -> Run:
    options = {} if dtype is None else {"param_dtype": dtype}
    return train(contender, steps=STEPS, optimizer=optimizer, **options)


def _worst_loss(mine: Run, theirs: Run) -> float:
    return max(abs(a - b) for a, b in zip(mine.losses, theirs.losses, strict=True))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_fp32_losses_agree(ranks: Ranks, world: int, stage: int) -> None:
    runs = ranks(world, _train, stage, "overlap", None)
    assert _worst_loss(runs[0], _reference(ranks)) <= 5e-6
    assert all(run.losses == runs[0].losses for run in runs)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_bf16_compute_stays_near_fp32(ranks: Ranks, world: int, stage: int) -> None:
    run = ranks(world, _train, stage, "overlap", torch.bfloat16)[0]
    assert 0 < _worst_loss(run, _reference(ranks)) <= 1e-3
