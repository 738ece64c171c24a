"""Whether a backward reduces is decided when it starts: where the forward ran makes no difference."""

import pytest
from support.chain import data, sharded_chain
from support.counting import collectives
from support.pair import assert_same_bits
from support.ranks import Ranks
from support.twins import gradients
from torch import nn

import overlap

STAGES = (0, 1, 2, 3)
ON_THE_WIRE = {"reduce", "replicated", "replicate", "control"}


def _warm(stage: int) -> nn.Module:
    model = sharded_chain(stage=stage)
    for step in range(2):
        model(data(step)).square().mean().backward()
        model.zero_grad()
    return model


def _only_backward(stage: int) -> None:
    model, plain = _warm(stage), _warm(stage)
    engine = overlap.engine_of(model)
    loss = model(data(2)).square().mean()

    def quiet() -> None:
        with model.no_sync():
            loss.backward()

    assert not collectives(engine, quiet).keys() & ON_THE_WIRE
    assert not gradients(model)
    model(data(3)).square().mean().backward()
    (plain(data(2)).square().mean()).backward()
    (plain(data(3)).square().mean()).backward()
    for name, grad in gradients(model).items():
        assert grad.allclose(gradients(plain)[name], rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("stage", STAGES)
def test_no_sync_around_backward_alone_reduces_nothing(ranks: Ranks, stage: int) -> None:
    ranks(2, _only_backward, stage)


def _only_forward(stage: int) -> None:
    model, plain = _warm(stage), _warm(stage)
    with model.no_sync():
        loss = model(data(2)).square().mean()
    counted = collectives(overlap.engine_of(model), loss.backward)
    assert counted["control"] == 1
    plain(data(2)).square().mean().backward()
    assert_same_bits(gradients(model), gradients(plain))


@pytest.mark.parametrize("stage", STAGES)
def test_no_sync_around_forward_alone_changes_nothing(ranks: Ranks, stage: int) -> None:
    ranks(2, _only_forward, stage)


def _nests_and_fails(stage: int) -> None:
    """The end of an inner one does not end the outer one; an error inside does not leave it on."""
    model = _warm(stage)
    with model.no_sync():
        with model.no_sync():
            model(data(2)).square().mean().backward()
        model(data(3)).square().mean().backward()
    assert not gradients(model)
    with pytest.raises(ArithmeticError), model.no_sync():
        raise ArithmeticError
    model(data(4)).square().mean().backward()
    assert gradients(model)


@pytest.mark.parametrize("stage", [0, 3])
def test_contexts_nest_and_end_with_an_error(ranks: Ranks, stage: int) -> None:
    ranks(1, _nests_and_fails, stage)
