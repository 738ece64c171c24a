"""Outputs that the loss leaves out, always or now and then; backward through a part of the model."""

import pytest
import torch
from support.chain import WIDTH, data
from support.pair import Loss, add_gradients
from support.ranks import Ranks
from support.twins import Twins, gradients
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

STAGES = (0, 1, 2, 3)


class Heads(nn.Module):
    """A trunk of blocks; every block has a head whose output is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 7) for _ in range(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        outs = []
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x).tanh()
            outs.append(head(x))
        return outs


def _heads(*used: int) -> Loss:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        outs = model(data(step, rank))
        return sum(outs[number].square().mean() for number in used)

    return loss


def _never_used(stage: int) -> None:
    twins = Twins(Heads, _heads(0, 2), stage=stage, unit=nn.Linear)
    for step in range(4):
        twins.backward()
        twins.check_gradients(f"of step {step}")
        shown = {name.partition(".weight")[0] for name in gradients(twins.model) if "weight" in name}
        assert shown == {"blocks.0", "blocks.1", "blocks.2", "heads.0", "heads.2"}
        twins.apply()
    twins.check()
    assert twins.engine.deviations == 0


@pytest.mark.parametrize("stage", STAGES)
def test_outputs_the_loss_never_uses_keep_no_gradient_and_follow_the_plan(ranks: Ranks, stage: int) -> None:
    ranks(2, _never_used, stage)


def _parts_in_turn(stage: int) -> None:
    """The last heads first, then a prefix of the model alone, whose plan would have gone on much further back."""
    twins = Twins(Heads, _heads(0, 1, 2, 3), stage=stage, unit=nn.Linear)
    for used in ((0, 1, 2, 3), (3,), (0,), (0, 1, 2, 3), (1,), (2, 3)):
        twins.loss = _heads(*used)
        twins.backward()
        twins.check_gradients(f"of heads {used}")
        assert all(isinstance(param, DTensor) for param in twins.model.parameters())
        twins.apply()
        twins.check(f"after heads {used}")


@pytest.mark.parametrize("stage", STAGES)
def test_backward_may_run_through_any_part_of_the_model(ranks: Ranks, stage: int) -> None:
    ranks(2, _parts_in_turn, stage)


def _in_two_halves(stage: int) -> None:
    """One forward, and a backward per half of its outputs: each reduces what it reached."""
    twins = Twins(Heads, _heads(0, 1, 2, 3), stage=stage, unit=nn.Linear)
    twins.step()
    for _ in range(2):
        outs = twins.model(data(twins.steps))
        sum(out.square().mean() for out in outs[:2]).backward(retain_graph=True)
        sum(out.square().mean() for out in outs[2:]).backward()
        twins.backward_plain()
        twins.check_gradients(bits=False)
        twins.apply()


@pytest.mark.parametrize("stage", STAGES)
def test_a_backward_for_each_half_of_the_outputs(ranks: Ranks, stage: int) -> None:
    ranks(2, _in_two_halves, stage)


def _only_inputs(stage: int) -> None:
    """``autograd.grad`` of an input alone: no gradient of a parameter, and none is reduced."""
    twins = Twins(Heads, _heads(0, 1, 2, 3), stage=stage, unit=nn.Linear)
    twins.step()
    x, plain_x = (data(5).requires_grad_() for _ in range(2))
    (mine,) = _input_gradient(twins.model, x)
    (theirs,) = _input_gradient(twins.plain, plain_x)
    assert (mine == theirs).all()
    assert not gradients(twins.model)
    twins.step()
    twins.check()


def _input_gradient(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(sum(out.sum() for out in model(x)), x)


@pytest.mark.parametrize("stage", STAGES)
def test_the_gradient_of_an_input_alone(ranks: Ranks, stage: int) -> None:
    ranks(2, _only_inputs, stage)


def _forward_alone(stage: int) -> None:
    """A forward whose graph is dropped: nothing of it is left in the next step."""
    twins = Twins(Heads, _heads(0, 1, 2, 3), stage=stage, unit=nn.Linear)
    for _ in range(3):
        twins.model(data(77))
        twins.step()
    twins.check()


@pytest.mark.parametrize("stage", STAGES)
def test_a_forward_without_a_backward_leaves_no_trace(ranks: Ranks, stage: int) -> None:
    ranks(2, _forward_alone, stage)


def _each_rank_another_part(world: int, stage: int) -> None:
    """All ranks run all of forward; each takes another head into its loss."""
    twins = Twins(Heads, _heads(0, 1, 2, 3), stage=stage, unit=nn.Linear, timeout_s=10.0)
    twins.step()

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        return _heads((rank + step) % 4)(model, rank, step)

    for _ in range(3):
        loss(twins.model, twins.rank, twins.steps).backward()
        add_gradients(twins.plain, world, lambda rank: [loss(twins.plain, rank, twins.steps)])
        twins.check_gradients(f"of step {twins.steps}")
        twins.apply()
    twins.check()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("world", [2, 4])
def test_each_rank_may_use_another_output(ranks: Ranks, world: int, stage: int) -> None:
    ranks(world, _each_rank_another_part, world, stage)
