"""Over a slow network communication hides under compute: a step takes about the larger of both, not their sum."""

import pytest
from support.ranks import Ranks
from support.slow_model import COMMUNICATION_S, COMPUTE_S, time_steps

WORLD = 2


@pytest.mark.parametrize("stage", [2, 3])
def test_a_step_is_closer_to_the_larger_part_than_to_the_sum(ranks: Ranks, stage: int) -> None:
    lanes = ranks(WORLD, time_steps, stage, "auto")[0]
    serial = ranks(WORLD, time_steps, stage, "inline")[0]
    # The serial run is the sum of both, plus what this machine adds in this minute; known sleeps are the parts.
    assert serial.step_s > COMPUTE_S + COMMUNICATION_S[stage]
    assert serial.step_s - lanes.step_s > 0.5 * min(COMPUTE_S, COMMUNICATION_S[stage])


def test_the_timeline_tells_hidden_from_exposed(ranks: Ranks) -> None:
    lanes = ranks(WORLD, time_steps, 3, "auto")[0]
    serial = ranks(WORLD, time_steps, 3, "inline")[0]
    assert lanes.ratio is not None
    assert lanes.ratio > 0.5
    assert serial.ratio is not None
    assert serial.ratio < 0.1
    assert serial.exposed_s > 0.9 * serial.comm_s
