"""Torch optimizers whose update depends on shapes: right on sharded parameters, or refused before anything changes."""

import pytest
import torch
from support.clear_error import clear_error
from support.matrices import give_gradients, seeded, sharded
from support.pair import assert_same_bits, whole
from support.ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import overlap


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.ndim == 2]


def _muon(shape: tuple[int, ...], stage: int) -> None:
    """In bf16 sums over ranks come in another order: 2e-4 here. Orthogonalising shards would be wrong by 1e-2."""
    model, plain = sharded(stage=stage, mesh=init_device_mesh("cpu", shape)), seeded()
    updates = [torch.optim.Muon(_matrices(each), lr=0.02, ns_steps=1) for each in (model, plain)]
    for step in range(3):
        give_gradients(model, step)
        give_gradients(plain, step)
        for update in updates:
            update.step()
    theirs = whole(plain)
    for name, value in whole(model).items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=5e-4)


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("shape", [(2,), (3,), (4,), (2, 2)], ids=str)
def test_torchs_muon_sees_whole_matrices(ranks: Ranks, shape: tuple[int, ...], stage: int) -> None:
    ranks(torch.Size(shape).numel(), _muon, shape, stage)


def _refuses(stage: int) -> None:
    model = sharded(stage=stage)
    update = torch.optim.Adafactor(model.parameters(), lr=1e-2)
    give_gradients(model, 0)
    before = whole(model)
    with clear_error(overlap.ConfigError, "Adafactor", "'experts'", "(4, 16, 8)", "overlap.Muon"):
        update.step()
    assert_same_bits(whole(model), before)
    assert not update.state


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_adafactor_over_sharded_matrices_is_refused(ranks: Ranks, world: int, stage: int) -> None:
    ranks(world, _refuses, stage)


def _trains(stage: int) -> None:
    model, plain = sharded(stage=stage), seeded()
    taken = [
        [param for param in each.parameters() if stage == 0 or param.ndim < 2]  # vectors may be sharded
        for each in (model, plain)
    ]
    updates = [torch.optim.Adafactor(params, lr=1e-2) for params in taken]
    for step in range(3):
        give_gradients(model, step)
        give_gradients(plain, step)
        for update in updates:
            update.step()
    assert_same_bits(whole(model), whole(plain))


@pytest.mark.parametrize("stage", [0, 3])
def test_adafactor_over_whole_parameters_trains_as_in_one_process(ranks: Ranks, stage: int) -> None:
    ranks(2, _trains, stage)
