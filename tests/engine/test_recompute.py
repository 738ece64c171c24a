"""Activation checkpointing: recomputed forwards happen inside backward, and need parameters there."""

from collections import Counter

import pytest
from support.models import BLOCKS, Recompute
from support.pair import Pair
from support.ranks import Ranks

STAGES = (1, 3)  # parameters that stay, and parameters that come and go


def _trains(stage: int, recompute: Recompute, reentrant: bool) -> Counter[str]:
    pair = Pair(stage=stage, poison=True, traits={"recompute": recompute, "reentrant": reentrant})
    for _ in range(4):
        pair.step()
    pair.check()
    assert pair.engine.deviations == 0
    return Counter(event.partition("#")[0] for event in pair.engine.executor.issued)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("recompute", ["around", "inside", "both"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_recomputed_blocks_equal_one_process(ranks: Ranks, stage: int, recompute: Recompute, reentrant: bool) -> None:
    issued = ranks(2, _trains, stage, recompute, reentrant)[0]
    gathers = {unit: issued[f"gathered:{unit}"] for unit in range(1, BLOCKS + 1)}
    if stage == 3:
        # The ring has two slots: the last two blocks are still there when backward begins.
        assert gathers == {1: 2, 2: 1, 3: 1}
    else:
        assert gathers == {1: 1, 2: 1, 3: 1}
