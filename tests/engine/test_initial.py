"""Ranks that start apart are made equal, or found out."""

import pytest
import torch
import torch.distributed as dist
from support.clear_error import clear_error
from support.models import Model, seeded
from support.pair import assert_same_bits, shard_blocks, whole
from support.ranks import Ranks

import overlap


def _with_buffer(seed: int) -> Model:
    model = seeded(seed)
    model.blocks[1].register_buffer("table", torch.full((3,), float(seed)))
    model.register_buffer("count", torch.tensor(seed))
    return model


def _broadcasts(stage: int) -> None:
    model = shard_blocks(_with_buffer(seed=dist.get_rank()), stage=stage)
    assert_same_bits(whole(model), whole(_with_buffer(seed=0)))
    assert torch.equal(model.blocks[1].table, torch.zeros(3))
    assert model.count.item() == 0


@pytest.mark.parametrize("stage", [1, 3])
def test_weights_and_buffers_of_rank_0_win(ranks: Ranks, stage: int) -> None:
    ranks(2, _broadcasts, stage)


def _verifies() -> None:
    assert_same_bits(whole(shard_blocks(_with_buffer(0), init="verify")), whole(_with_buffer(0)))
    with clear_error(overlap.StateError, "norm.weight", "rank", 'init="broadcast"'):
        model = _with_buffer(0)
        model.blocks[2].norm.weight.data += float(dist.get_rank())
        shard_blocks(model, init="verify")


def test_verification_accepts_equal_weights_and_names_an_odd_one(ranks: Ranks) -> None:
    ranks(3, _verifies)


def _verifies_buffers() -> None:
    model = _with_buffer(0)
    model.count += dist.get_rank()
    with clear_error(overlap.StateError, "'count'", "rank"):
        shard_blocks(model, init="verify")


def test_verification_covers_buffers(ranks: Ranks) -> None:
    ranks(2, _verifies_buffers)
