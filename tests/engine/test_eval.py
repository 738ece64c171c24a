"""Forward-only passes: a plan of their own, and no trace in training."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from support.models import BLOCKS, loss_of
from support.pair import Pair, Sharded, assert_same_bits, routed, whole
from support.ranks import Ranks

STAGES = (0, 1, 2, 3)
MODES: tuple[Callable[[], AbstractContextManager[None]], ...] = (torch.no_grad, torch.inference_mode)


def _evaluate(run: Sharded, mode: Callable[[], AbstractContextManager[None]]) -> float:
    run.model.eval()
    with mode():
        loss = loss_of(run.model, run.rank, 99).item()
    run.model.train()
    return loss


def _interleaves(stage: int) -> None:
    for mode in MODES:
        straight, interleaved = (Sharded(stage=stage, poison=True) for _ in range(2))
        losses = []
        for _ in range(4):
            losses.append((_evaluate(interleaved, mode), loss_of(straight.model, straight.rank, 99).item()))
            _evaluate(interleaved, mode)
            straight.step()
            interleaved.step()
        assert_same_bits(whole(interleaved.model), whole(straight.model), f"under {mode.__name__}")
        assert all(mine == theirs for mine, theirs in losses)
        assert len({mine for mine, _ in losses}) == len(losses), "each evaluation sees the latest update"


@pytest.mark.parametrize("stage", STAGES)
def test_evaluation_before_and_between_steps_leaves_training_to_the_bit(ranks: Ranks, stage: int) -> None:
    ranks(2, _interleaves, stage)


def _follows_its_plan(stage: int) -> None:
    run = Sharded(stage=stage, poison=True)
    for _ in range(4):
        run.step()
        for _ in range(3):
            _evaluate(run, torch.no_grad)
    assert run.engine.deviations == 0
    assert run.engine.plan.mode == "train"
    plan = run.engine.plans.latest("eval")
    if stage == 0:  # nothing to gather, nothing to plan: one rank may evaluate alone
        assert plan is None
        return
    kinds = {str(op.kind) for op in plan.ops}
    assert kinds == {"begin", "forward", "forward_end"} | ({"gather"} if stage == 3 else set())


@pytest.mark.parametrize("stage", STAGES)
def test_alternating_with_training_is_no_departure(ranks: Ranks, stage: int) -> None:
    ranks(2, _follows_its_plan, stage)


def _gathers_ahead() -> None:
    run = Sharded()
    for _ in range(3):
        _evaluate(run, torch.no_grad)
    issued = run.engine.executor.issued
    for unit in range(2, BLOCKS + 1):
        assert issued.index(f"gathered:{unit}") < issued.index(f"forward:{unit - 1}")


def test_evaluation_gathers_one_unit_ahead(ranks: Ranks) -> None:
    ranks(2, _gathers_ahead)


def _evaluates_another_way(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    for _ in range(2):
        pair.step()
    with torch.no_grad():
        for route in ((0, 1, 2), (0, 1, 2), (1,), (2, 2, 0)):
            mine, plain = (routed(*route)(model, pair.rank, 5) for model in (pair.model, pair.plain))
            assert torch.equal(mine, plain), route
    pair.step()
    pair.check()


@pytest.mark.parametrize("stage", STAGES)
def test_evaluation_in_another_order_is_right(ranks: Ranks, stage: int) -> None:
    ranks(2, _evaluates_another_way, stage)


def _runs_in_another_order(stage: int) -> None:
    """Blocks run in another order than they are registered in: slots are laid out anew once training has shown it."""
    pair = Pair(stage=stage, poison=True)
    swapped = routed(1, 0, 2)
    for _ in range(4):
        for _ in range(2):
            with torch.no_grad():
                mine, plain = (swapped(model, pair.rank, 5) for model in (pair.model, pair.plain))
            assert torch.equal(mine, plain)
        pair.step(swapped)
    pair.check()
    assert pair.engine.deviations == 0
    if stage > 0:  # stage 0 has nothing to plan
        assert pair.engine.plans.latest("eval").spec == pair.engine.executor.spec


@pytest.mark.parametrize("stage", STAGES)
def test_evaluation_keeps_up_when_slots_are_laid_out_anew(ranks: Ranks, stage: int) -> None:
    ranks(2, _runs_in_another_order, stage)


def _evaluates_a_part(stage: int) -> None:
    """A unit called by itself, from outside the model that encloses it."""
    run = Sharded(stage=stage, poison=True)
    run.step()
    x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        inside = run.model.blocks[1](x)
    loss = run.model.blocks[1](x).square().mean()
    loss.backward()
    assert torch.equal(loss.detach(), inside.square().mean())
    grads = {name: param.grad for name, param in run.model.named_parameters() if param.grad is not None}
    assert set(grads) == {f"blocks.1.{name}" for name, _ in run.model.blocks[1].named_parameters()}


@pytest.mark.parametrize("stage", STAGES)
def test_a_unit_may_be_called_by_itself(ranks: Ranks, stage: int) -> None:
    ranks(2, _evaluates_a_part, stage)
