"""Frozen parameters: gathered and used like others, never updated, and still there for the gradients of inputs."""

import pytest
from support.chain import data, sharded_chain
from support.pair import Pair
from support.ranks import Ranks
from torch import nn

import overlap

STAGES = (0, 1, 2, 3)


def _freeze_first_half_of_blocks(model: nn.Module) -> None:
    """What a block's backward still reads after its last trainable parameter has its gradient."""
    for block in model.blocks:
        block.norm.requires_grad_(False)
        block.up.requires_grad_(False)


def _freeze_a_block(model: nn.Module) -> None:
    model.blocks[1].requires_grad_(False)


def _freeze_all_but_a_bias(model: nn.Module) -> None:
    model.requires_grad_(False)
    model.blocks[0].down.bias.requires_grad_(True)


FREEZES = (_freeze_first_half_of_blocks, _freeze_a_block, _freeze_all_but_a_bias)


def _trains_the_rest(stage: int) -> None:
    for freeze in FREEZES:
        pair = Pair(stage=stage, poison=True, prepare=freeze)
        for _ in range(4):
            pair.step()
        pair.check(f"after {freeze.__name__}")
        for name, param in pair.model.named_parameters():
            assert param.requires_grad is pair.plain.get_parameter(name).requires_grad


@pytest.mark.parametrize("stage", STAGES)
def test_the_rest_trains_as_in_one_process(ranks: Ranks, stage: int) -> None:
    ranks(2, _trains_the_rest, stage)


def _frozen_later() -> None:
    model = sharded_chain(replicate_max_numel=0)
    engine = overlap.engine_of(model)
    for step in range(4):
        model.blocks[-1].requires_grad_(step < 2)  # its buckets are the first to leave
        model(data(step)).square().mean().backward()
        model.zero_grad()
    issued = engine.executor.issued
    behind = next(n for n, bucket in enumerate(engine.gradients.buckets) if bucket.name == "blocks.1")
    first_block = next(n for n, unit in enumerate(engine.units) if unit.name == "blocks.0")
    assert issued.index(f"reduced:{behind}") < issued.index(f"backward:{first_block}")


def test_a_bucket_that_is_frozen_again_does_not_hold_up_those_behind_it(ranks: Ranks) -> None:
    ranks(2, _frozen_later)
