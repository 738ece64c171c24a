"""Parameters are the same objects at all times: when the optimizer is built makes no difference."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from support.chain import BLOCKS, data, sharded_chain
from support.pair import assert_same_bits, whole
from support.ranks import Ranks
from torch import nn

import overlap

STAGES = (0, 1, 2, 3)
Build = Callable[..., torch.optim.Optimizer]
OPTIMIZERS = {"overlap": partial(overlap.AdamW, lr=1e-2), "torch": partial(torch.optim.AdamW, lr=1e-2)}


def _before(model: nn.Module) -> None:
    """Nothing has run yet."""


def _evaluated(model: nn.Module) -> None:
    with torch.no_grad():
        model(data(9))


def _forwarded(model: nn.Module) -> None:
    model(data(9))


def _differentiated(model: nn.Module) -> None:
    model(data(9)).sum().backward()
    model.zero_grad()


def _failed(model: nn.Module) -> None:
    """Inside a forward that raises, and after it."""
    handle = model.blocks[1].register_forward_hook(_raise)
    with pytest.raises(ArithmeticError):
        model(data(9))
    handle.remove()


def _raise(*_: object) -> None:
    raise ArithmeticError


MOMENTS = (_before, _evaluated, _forwarded, _differentiated, _failed)


def _trained(stage: int, build: Build, moment: Callable[[nn.Module], None]) -> nn.Module:
    model = sharded_chain(stage=stage)
    moment(model)
    update = build(model.parameters())
    for step in range(3):
        model(data(step)).square().mean().backward()
        update.step()
        update.zero_grad()
    return model


def _whenever(stage: int, build: Build) -> None:
    straight = whole(_trained(stage, build, _before))
    for moment in MOMENTS[1:]:
        assert_same_bits(whole(_trained(stage, build, moment)), straight, f"after {moment.__name__}")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("stage", STAGES)
def test_an_optimizer_may_be_built_after_the_first_forward(ranks: Ranks, stage: int, name: str) -> None:
    ranks(2, _whenever, stage, OPTIMIZERS[name])


def _between_forward_and_backward(stage: int) -> None:
    model = sharded_chain(stage=stage)
    loss = model(data(0)).square().mean()
    update = overlap.AdamW(model.parameters(), lr=1e-2)
    before = whole(model)
    loss.backward()
    update.step()
    assert all(not torch.equal(value, before[name]) for name, value in whole(model).items())


@pytest.mark.parametrize("stage", STAGES)
def test_it_may_be_built_between_forward_and_backward(ranks: Ranks, stage: int) -> None:
    ranks(2, _between_forward_and_backward, stage)


def _always_the_same(stage: int) -> None:
    model = sharded_chain(stage=stage)
    first = [*map(id, model.parameters())]

    def same() -> bool:
        by_module = [id(module.weight) for module in (block.linear for block in model.blocks)]
        return [*map(id, model.parameters())] == first and set(by_module) <= set(first)

    for moment in MOMENTS:
        moment(model)
        assert same(), moment.__name__
    model.train()
    model.load_state_dict(model.state_dict())
    model.requires_grad_(True)
    model.zero_grad(set_to_none=True)
    assert same()
    assert len(model.blocks) == BLOCKS


@pytest.mark.parametrize("stage", STAGES)
def test_parameters_are_the_same_objects_whatever_has_run(ranks: Ranks, stage: int) -> None:
    ranks(2, _always_the_same, stage)
