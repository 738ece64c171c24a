"""At two ranks in fp32 the engine and its peers compute the same bits."""

import pytest
from support.ranks import Ranks
from support.training import Run, largest_difference, same_bits, train

STEPS = 20


def _run(ranks: Ranks, contender: str | int, optimizer: str = "torch") -> Run:
    return ranks(2, _train, contender, optimizer)[0]


def _train(contender: str | int, optimizer: str) -> Run:
    return train(contender, steps=STEPS, optimizer=optimizer)


@pytest.fixture(scope="module")
def ddp(ranks: Ranks) -> Run:
    return _run(ranks, "ddp")


@pytest.mark.parametrize("contender", ["fsdp2", 0, 1, 2, 3])
def test_losses_and_parameters_equal_ddp_bit_for_bit(ranks: Ranks, ddp: Run, contender: str | int) -> None:
    run = _run(ranks, contender)
    assert run.losses == ddp.losses
    assert same_bits(run.params, ddp.params)
    assert run.deviations == 0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_fused_update_stays_within_a_millionth_of_ddp(ranks: Ranks, ddp: Run, stage: int) -> None:
    run = _run(ranks, stage, "overlap")
    assert max(abs(mine - theirs) for mine, theirs in zip(run.losses, ddp.losses, strict=True)) <= 1e-6
    assert largest_difference(run.params, ddp.params) <= 1e-6
