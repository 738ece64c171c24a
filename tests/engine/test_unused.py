"""Parameters without a gradient: on all ranks they stay untouched, on some they count as zeros."""

import pytest
from support.models import BLOCKS
from support.pair import Pair, routed, routed_by_rank
from support.ranks import Ranks

STAGES = (0, 1, 2, 3)


def _unused_everywhere(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    pair.step()
    for _ in range(2):
        pair.backward(routed(0, 2))
        assert all(param.grad is None for param in pair.model.blocks[1].parameters())
        assert all(param.grad is not None for param in pair.model.blocks[2].parameters())
        pair.apply()
    pair.step()
    pair.check()


@pytest.mark.parametrize("stage", STAGES)
def test_unused_on_all_ranks_has_no_gradient(ranks: Ranks, stage: int) -> None:
    ranks(2, _unused_everywhere, stage)


def _unused_from_the_start(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    for _ in range(3):
        pair.step(routed(0, 2))
    assert pair.engine.deviations == 0, "the plan was recorded without the block"
    pair.step()
    pair.check()


@pytest.mark.parametrize("stage", STAGES)
def test_a_block_that_comes_into_use_later_trains_from_then_on(ranks: Ranks, stage: int) -> None:
    ranks(2, _unused_from_the_start, stage)


def _branches(world: int, stage: int) -> None:
    """Block 1 runs on rank 0 only, block 2 on the last rank only; all collectives take place."""
    routes = [(0, 1)] + [(0,)] * (world - 2) + [(0, 2)]
    pair = Pair(stage=stage, poison=True)
    pair.step()
    for _ in range(3):
        pair.backward(routed_by_rank(*routes))
        assert all(param.grad is not None for param in pair.model.parameters())
        pair.apply()
        pair.step()
    pair.check()
    assert len(pair.model.blocks) == BLOCKS


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("world", [2, 3])
def test_a_branch_that_depends_on_the_rank_counts_as_zeros_elsewhere(ranks: Ranks, world: int, stage: int) -> None:
    ranks(world, _branches, world, stage)


def _branch_while_accumulating(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    pair.step()
    pair.step(routed_by_rank((0, 1), (0, 2)), routed_by_rank((0,), (0, 1)))
    pair.check()


@pytest.mark.parametrize("stage", STAGES)
def test_branches_add_up_over_micro_batches(ranks: Ranks, stage: int) -> None:
    ranks(2, _branch_while_accumulating, stage)
