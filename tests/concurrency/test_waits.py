"""Late lanes over poisoned memory: the plan's waits are enough, and each of them is needed."""

import pytest
import torch
from support.races import Cut, params_with_late, planned_waits, survives
from support.ranks import Ranks

WORLD = 2


@pytest.mark.parametrize("lane", ["compute", "gather", "reduce"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_late_lanes_change_nothing(ranks: Ranks, stage: int, lane: str) -> None:
    expected = ranks(WORLD, params_with_late, stage, "none")[0]
    for params in ranks(WORLD, params_with_late, stage, lane):
        assert all(torch.equal(params[name], value) for name, value in expected.items())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_single_wait_is_needed(ranks: Ranks, stage: int) -> None:
    expected = ranks(WORLD, params_with_late, stage, "none")[0]
    waits = ranks(WORLD, planned_waits, stage)[0]
    assert len(waits) >= 5
    unnoticed = [
        f"{label} waits for {event}"
        for number, event, label in waits
        if ranks(WORLD, survives, stage, Cut(number, event), expected)[0]
    ]
    assert unnoticed == []
