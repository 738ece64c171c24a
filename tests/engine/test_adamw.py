"""The fused AdamW does what torch's does, for any groups; a parameter without gradient stays as it is."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from support.clear_error import clear_error
from support.models import loss_of, seeded
from support.pair import Sharded, assert_same_bits, routed, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import overlap

Build = Callable[[nn.Module], torch.optim.Optimizer]
ARGUMENTS = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.1}


def _train(build: Build, *, steps: int = 4, schedule: bool = False, **options: Any) -> dict[str, Tensor]:
    model = shard_blocks(seeded(), **options)
    update = build(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(update, steps) if schedule else None
    for step in range(steps):
        loss_of(model, torch.distributed.get_rank(), step).backward()
        update.step()
        update.zero_grad()
        if scheduler is not None:
            scheduler.step()
    return whole(model)


def _grouped(optimizer: Callable[..., torch.optim.Optimizer], model: nn.Module) -> torch.optim.Optimizer:
    """Two groups, interleaved in every flat: biases and norms do not decay, and learn faster."""
    matrices = [param for param in model.parameters() if param.ndim == 2]
    vectors = [param for param in model.parameters() if param.ndim == 1]
    return optimizer([{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lr": 3e-2}], **ARGUMENTS)


def _plain(optimizer: Callable[..., torch.optim.Optimizer], model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return optimizer(model.parameters(), **{**ARGUMENTS, **more})


def _assert_close(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


def _equals_torch(stage: int) -> None:
    for build, steps in ((_grouped, 20), (partial(_plain, maximize=True), 3)):
        mine = _train(partial(build, overlap.AdamW), steps=steps, stage=stage)
        _assert_close(mine, _train(partial(build, torch.optim.AdamW), steps=steps, stage=stage))


@pytest.mark.parametrize("stage", [1, 3])
def test_it_equals_torchs_within_1e_6_over_20_steps(ranks: Ranks, stage: int) -> None:
    ranks(2, _equals_torch, stage)


def _split(number: int, model: nn.Module) -> torch.optim.Optimizer:
    params = list(model.parameters())
    return overlap.AdamW([{"params": params[start::number]} for start in range(number)], **ARGUMENTS)


def _groups_change_nothing() -> None:
    assert_same_bits(_train(partial(_split, 3)), _train(partial(_split, 1)))


def test_equal_groups_are_one_group_to_the_bit(ranks: Ranks) -> None:
    ranks(2, _groups_change_nothing)


def _schedules_alike() -> None:
    mine = _train(partial(_grouped, overlap.AdamW), schedule=True)
    _assert_close(mine, _train(partial(_grouped, torch.optim.AdamW), schedule=True))


def test_learning_rate_schedulers_drive_it(ranks: Ranks) -> None:
    ranks(2, _schedules_alike)


def _state(optimizer: torch.optim.Optimizer, params: Iterable[nn.Parameter]) -> list[list[Any]]:
    return [
        [v.to_local().clone() if isinstance(v, DTensor) else v for v in optimizer.state[p].values()] for p in params
    ]


def _leaves_unused_alone(stage: int) -> None:
    run = Sharded(stage=stage, optimizer=partial(overlap.AdamW, lr=1e-2))
    block = list(run.model.blocks[1].parameters())
    for _ in range(2):
        run.step()
    before = [param.to_local().clone() for param in block], _state(run.update, block)
    run.step(routed(0, 2))
    after = [param.to_local() for param in block], _state(run.update, block)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert run.update.state[block[0]]["step"] == 2
    assert run.update.state[run.model.head.weight]["step"] == 3


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_weights_moments_and_step_stay_where_no_gradient_came(ranks: Ranks, stage: int) -> None:
    ranks(2, _leaves_unused_alone, stage)


def _follows_uneven_use() -> None:
    trained = []
    for optimizer in (overlap.AdamW, torch.optim.AdamW):
        run = Sharded(optimizer=partial(optimizer, lr=1e-2))
        for route in ((0, 1, 2), (0, 2), (0, 1, 2), (2, 1), (0, 1, 2)):
            run.backward(routed(*route))
            if len(route) == 2:  # also apart within a flat
                run.model.head.weight.grad = run.model.blocks[2].up.weight.grad = None
            run.apply()
        trained.append(whole(run.model))
    _assert_close(*trained)


def test_parameters_used_at_different_steps_keep_their_own_step(ranks: Ranks) -> None:
    ranks(2, _follows_uneven_use)


def _starts_afresh() -> None:
    trained = []
    for optimizer in (overlap.AdamW, torch.optim.AdamW):
        run = Sharded(optimizer=partial(optimizer, lr=1e-2))
        run.step()
        run.update = optimizer(run.model.parameters(), lr=1e-2)
        run.step()
        trained.append(whole(run.model))
    _assert_close(*trained)


def test_a_second_optimizer_starts_with_moments_of_zero(ranks: Ranks) -> None:
    ranks(2, _starts_afresh)


def _superseded() -> None:
    run = Sharded(optimizer=partial(overlap.AdamW, lr=1e-2))
    run.backward()
    params = list(run.model.parameters())
    overlap.AdamW(params[:1], lr=1e-2)
    with clear_error(overlap.StateError, "optimizer", "built"):
        run.update.step()


def test_an_optimizer_whose_moments_another_has_taken_is_refused(ranks: Ranks) -> None:
    ranks(2, _superseded)


def _shares_a_flat() -> None:
    trained = []
    for number in (1, 2):
        model = shard_blocks(seeded())
        params = list(model.parameters())
        updates = [overlap.AdamW(params[start::number], lr=1e-2) for start in range(number)]
        for step in range(3):
            loss_of(model, torch.distributed.get_rank(), step).backward()
            for update in updates:
                update.step()
                update.zero_grad()
        trained.append(whole(model))
    assert_same_bits(*trained)


def test_optimizers_over_different_parameters_share_a_model(ranks: Ranks) -> None:
    ranks(2, _shares_a_flat)
