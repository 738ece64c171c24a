"""Frozen parameters: gathered and used like others, never updated, and still there for the gradients of inputs."""

import pytest
from support.pair import Pair
from support.ranks import Ranks
from torch import nn

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
