"""Clipping, unscaling and skipping inside the fused update."""

from functools import partial
from typing import Any

import pytest
import torch
from support.clear_error import clear_error
from support.models import loss_of, seeded
from support.pair import Sharded, assert_same_bits, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn

import overlap

LIMIT = 0.05  # below the norms met here
SCALE = 1024.0  # a power of two: unscaling is exact


def _adamw(**more: Any) -> partial[torch.optim.Optimizer]:
    return partial(overlap.AdamW, lr=1e-2, **more)


def _clips_as_torch(stage: int) -> None:
    inside = Sharded(stage=stage, optimizer=_adamw(max_grad_norm=LIMIT))
    before = Sharded(stage=stage, optimizer=_adamw())
    for _ in range(5):
        inside.step()
        before.backward()
        norm = torch.nn.utils.clip_grad_norm_(before.model.parameters(), LIMIT).full_tensor()
        before.apply()
        assert norm > LIMIT
        assert float(inside.update.grad_norm) == pytest.approx(float(norm), rel=1e-5)
        assert float(inside.update.clipped_grad_norm) == pytest.approx(LIMIT, rel=1e-4)
    for name, value in whole(before.model).items():
        torch.testing.assert_close(whole(inside.model)[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("stage", [1, 3])
def test_max_grad_norm_equals_torchs_clip_before_the_step(ranks: Ranks, stage: int) -> None:
    ranks(2, _clips_as_torch, stage)


def _counts_all_groups() -> None:
    def grouped(params: list[nn.Parameter], **more: Any) -> torch.optim.Optimizer:
        params = list(params)
        return overlap.AdamW([{"params": params[:7]}, {"params": params[7:]}], **more)

    one, two = (Sharded(optimizer=partial(build, lr=1e-2, max_grad_norm=LIMIT)) for build in (overlap.AdamW, grouped))
    for run in (one, two):
        run.step()
    assert torch.equal(one.update.grad_norm, two.update.grad_norm)
    assert_same_bits(whole(one.model), whole(two.model))


def test_the_norm_is_that_of_all_groups_together(ranks: Ranks) -> None:
    ranks(2, _counts_all_groups)


def _scaled_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return loss_of(model, rank, step) * SCALE


def _unscales(max_grad_norm: float | None) -> None:
    plain, scaled = (Sharded(optimizer=_adamw(max_grad_norm=max_grad_norm)) for _ in range(2))
    for _ in range(3):
        plain.step()
        scaled.backward(_scaled_loss)
        scaled.update.step(grad_scale=torch.tensor([1 / SCALE]))
        scaled.update.zero_grad()
        scaled.steps += 1
        if max_grad_norm is not None:
            assert float(scaled.update.grad_norm) == pytest.approx(float(plain.update.grad_norm), rel=1e-6)
    for name, value in whole(plain.model).items():
        torch.testing.assert_close(whole(scaled.model)[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("max_grad_norm", [None, LIMIT])
def test_grad_scale_takes_the_loss_scale_out_before_clipping(ranks: Ranks, max_grad_norm: float | None) -> None:
    ranks(2, _unscales, max_grad_norm)


def _everything(run: Sharded) -> dict[str, Tensor]:
    state = {
        f"{name} {key}": torch.tensor(value) if key == "step" else value.full_tensor().clone()
        for name, entry in run.update.state_dict()["state"].items()
        for key, value in entry.items()
    }
    return {**whole(run.model), **state}


def _skips(stage: int, max_grad_norm: float | None) -> None:
    run = Sharded(stage=stage, param_dtype=torch.bfloat16, optimizer=_adamw(max_grad_norm=max_grad_norm))
    run.step()
    before = _everything(run)
    loss = loss_of(run.model, run.rank, 1)
    loss.mul(float("inf")).backward()
    run.update.step(skip=torch.ones(1))
    run.update.zero_grad()
    assert_same_bits(_everything(run), before)
    assert torch.equal(loss_of(run.model, run.rank, 1), loss), "compute sees the same weights, too"
    run.backward()
    run.update.step(skip=torch.zeros(1))
    assert all(not torch.equal(value, before[name]) for name, value in whole(run.model).items())


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("max_grad_norm", [None, LIMIT])
def test_a_skipped_step_leaves_weights_moments_and_step_count_to_the_bit(
    ranks: Ranks, stage: int, max_grad_norm: float | None
) -> None:
    ranks(2, _skips, stage, max_grad_norm)


def _takes_numbers() -> None:
    scales = (torch.tensor([0.25]), torch.tensor(0.25, dtype=torch.float64), 0.25)
    runs = []
    for number, scale in enumerate(scales):
        run = Sharded(optimizer=_adamw(max_grad_norm=LIMIT))
        run.backward()
        run.update.step(grad_scale=scale, skip=(False, torch.tensor(0), torch.zeros(1, 1))[number])
        runs.append(_everything(run))
        run.update.step(skip=(True, torch.tensor(2), torch.tensor([float("nan")]))[number])
        assert_same_bits(_everything(run), runs[-1])
        with clear_error(overlap.ConfigError, "grad_scale", "(2,)"):
            run.update.step(grad_scale=torch.ones(2))
    assert_same_bits(runs[0], runs[1])
    assert_same_bits(runs[0], runs[2])


def test_scale_and_flag_may_be_any_kind_of_one_number(ranks: Ranks) -> None:
    ranks(2, _takes_numbers)


def _watched(**watching: bool) -> dict[str, Tensor]:
    run = Sharded(optimizer=_adamw(max_grad_norm=LIMIT), **watching)
    scaler = overlap.LossScaler(SCALE)
    for _ in range(3):
        run.backward(lambda model, rank, step: scaler.scale(loss_of(model, rank, step)))
        run.update.step(scaler=scaler)
        run.update.zero_grad()
        run.steps += 1
    return _everything(run)


def _watching_changes_nothing() -> None:
    assert_same_bits(_watched(timeline=True, nvtx=True), _watched())


def test_clipped_and_scaled_steps_are_the_same_under_observation(ranks: Ranks) -> None:
    ranks(2, _watching_changes_nothing)


def _refuses_values() -> None:
    params = list(shard_blocks(seeded()).parameters())
    for name, value in {"lr": -1.0, "eps": -1e-8, "weight_decay": -0.1, "max_grad_norm": 0.0}.items():
        with clear_error(overlap.ConfigError, name, str(value)):
            overlap.AdamW(params, **{name: value})
    with clear_error(overlap.ConfigError, "betas[1]", "1.0"):
        overlap.AdamW(params, betas=(0.9, 1.0))
    with clear_error(overlap.ConfigError, "parameter", "sharded", "(3, 2)"):
        overlap.AdamW([nn.Parameter(torch.zeros(3, 2))])


def test_arguments_out_of_range_and_plain_parameters_are_refused(ranks: Ranks) -> None:
    ranks(1, _refuses_values)
