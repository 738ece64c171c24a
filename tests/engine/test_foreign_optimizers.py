"""Any torch optimizer trains the same parameters; one built too early is refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.clear_error import clear_error
from support.models import loss_of, seeded
from support.pair import Pair, Sharded, assert_same_bits, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn

import overlap

STAGES = (1, 3)  # parameters that stay, and parameters that come and go
Build = Callable[..., torch.optim.Optimizer]
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam one by one": partial(torch.optim.AdamW, lr=1e-2, foreach=False),
    "adam foreach": partial(torch.optim.AdamW, lr=1e-2, foreach=True),
    "adam fused": partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3),
}


def _equals_one_process(build: Build) -> None:
    for stage in STAGES:
        pair = Pair(stage=stage, optimizer=build)
        for _ in range(3):
            pair.step()
        pair.check(f"at stage {stage}")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_in_one_process_to_the_bit(ranks: Ranks, name: str) -> None:
    ranks(2, _equals_one_process, OPTIMIZERS[name])


def _weights_in_forward(model: nn.Module, rank: int) -> dict[str, Tensor]:
    met = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda module, args, name=name: met.update({f"{name}.weight": module.weight.detach().clone()})
        )
        for name in ("embedding", "blocks.0.up", "blocks.2.norm", "head")
    ]
    loss_of(model, rank, 7)
    for hook in hooks:
        hook.remove()
    return met


def _refreshes(build: Build) -> None:
    for stage in STAGES:
        run = Sharded(stage=stage, optimizer=build, param_dtype=torch.bfloat16)
        for _ in range(2):
            run.step()
            master = whole(run.model)
            for name, weight in _weights_in_forward(run.model, run.rank).items():
                assert torch.equal(weight, master[name].bfloat16()), f"{name} at stage {stage}"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compute_in_bf16_follows_every_update_of_the_master(ranks: Ranks, name: str) -> None:
    ranks(2, _refreshes, OPTIMIZERS[name])


def _edit_in_place(param: nn.Parameter) -> None:
    param.mul_(2.0)


def _copy_into(param: nn.Parameter) -> None:
    param.copy_(param.detach().clone() + 1.0)


def _follows_edits(edit: Callable[[nn.Parameter], None]) -> None:
    for stage in STAGES:
        model = shard_blocks(seeded(), stage=stage, param_dtype=torch.bfloat16)
        _weights_in_forward(model, 0)
        with torch.no_grad():
            for param in model.parameters():
                edit(param)
        for name, weight in _weights_in_forward(model, 0).items():
            assert torch.equal(weight, whole(model)[name].bfloat16()), f"{name} at stage {stage}"


@pytest.mark.parametrize("edit", [_edit_in_place, _copy_into])
def test_compute_in_bf16_follows_edits_of_the_master(ranks: Ranks, edit: Callable[[nn.Parameter], None]) -> None:
    ranks(2, _follows_edits, edit)


def _zeroes_gradients(build: Build) -> None:
    kept, dropped = (Sharded(optimizer=build) for _ in range(2))
    for _ in range(3):
        kept.backward()
        kept.update.step()
        kept.update.zero_grad(set_to_none=False)
        kept.steps += 1
        dropped.step()
    assert_same_bits(whole(kept.model), whole(dropped.model))


@pytest.mark.parametrize("build", [OPTIMIZERS["sgd"], partial(overlap.AdamW, lr=1e-2)], ids=["sgd", "overlap"])
def test_gradients_may_be_zeroed_instead_of_dropped(ranks: Ranks, build: Build) -> None:
    ranks(2, _zeroes_gradients, build)


def _refuses_dead_parameters(build: Any) -> None:
    model = seeded()
    update = build(model.parameters())
    shard_blocks(model)
    loss_of(model, 0, 0).backward()
    with clear_error(overlap.StateError, "optimizer", "after the model was sharded", str((257, 16))):
        update.step()


@pytest.mark.parametrize("name", ["sgd", "adam foreach"])
def test_an_optimizer_built_before_sharding_is_refused_at_its_step(ranks: Ranks, name: str) -> None:
    ranks(2, _refuses_dead_parameters, OPTIMIZERS[name])
