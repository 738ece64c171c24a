"""torch's own GradScaler, as it is: an Inf in one rank's shard makes all ranks skip, and all scales stay equal."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.models import loss_of
from support.overflow import INF, spoil
from support.pair import Pair, assert_same_bits, whole
from support.ranks import Ranks
from torch import nn
from torch.amp import GradScaler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor

import overlap

STAGES = (0, 1, 2, 3)
LIMIT = 0.05
SHARDED, REPLICATED = "head.weight", "blocks.1.norm.bias"
# What is spoiled before each step. With growth after two good steps in a row the scale rises and falls.
PROGRAM = (None, SHARDED, None, None, REPLICATED, None, None)

Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
# eps so large that a gradient of rounding noise does not become a step of size lr.
ADAM = {"lr": 1e-2, "eps": 1e-4}
OPTIMIZERS: dict[str, Build] = {
    "overlap": partial(overlap.AdamW, **ADAM),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam foreach": partial(torch.optim.AdamW, **ADAM, foreach=True),
    "adam fused": partial(torch.optim.AdamW, **ADAM, fused=True),  # takes scale and flag into its own step
}


def _replicated_first(params: Any) -> list[nn.Parameter]:
    """torch shares what it finds as the placement of the first gradient says."""
    return sorted(params, key=lambda param: isinstance(param, DTensor) and param.placements[-1].is_shard())


class Scaled(Pair):
    """A pair whose losses are scaled by a scaler each."""

    def __init__(self, name: str, order: Callable[[Any], list[nn.Parameter]] = list, **options: Any) -> None:
        super().__init__(**options)
        self.update = OPTIMIZERS[name](order(self.model.parameters()))
        self.plain_update = OPTIMIZERS["adam foreach" if name == "overlap" else name](list(self.plain.parameters()))
        settings = {"init_scale": 2.0**10, "growth_interval": 2}
        self.scaler, self.plain_scaler = GradScaler("cpu", **settings), GradScaler("cpu", **settings)

    def step(self, spoiled: str | None = None, max_norm: float | None = None) -> None:
        """Scale, spoil, unscale, clip, step and update, in both."""
        self.backward(lambda model, rank, step: self.scaler.scale(loss_of(model, rank, step)))
        self.plain_scaler.scale(torch.zeros(()))
        for model, update, scaler in (
            (self.model, self.update, self.scaler),
            (self.plain, self.plain_update, self.plain_scaler),
        ):
            if spoiled is not None:
                spoil(model, spoiled)
            if max_norm is not None:
                scaler.unscale_(update)
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(update)
            scaler.update()
            update.zero_grad()
        self.steps += 1


def _same_scale(run: Scaled) -> float:
    scales: list[Any] = [None] * run.world
    dist.all_gather_object(scales, run.scaler.state_dict())
    assert scales == [run.plain_scaler.state_dict()] * run.world
    return run.scaler.get_scale()


def _close(run: Scaled) -> None:
    mine, theirs = whole(run.model), whole(run.plain)
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


def _skips_on_all_ranks(name: str, stages: tuple[int, ...], max_norm: float | None) -> None:
    for stage in stages:
        for order in (list, _replicated_first) if stage == 3 else (list,):
            run = Scaled(name, order, stage=stage)
            for spoiled in PROGRAM:
                before = whole(run.model)
                run.step(spoiled, max_norm)
                if spoiled is not None:
                    assert_same_bits(whole(run.model), before, f"after {spoiled} at stage {stage}")
            assert _same_scale(run) == 2.0**10
            if name == "overlap" or max_norm is not None:
                _close(run)
            else:
                run.check(f"at stage {stage}, {order.__name__}")


@pytest.mark.parametrize(
    ("world", "name"), [*((2, name) for name in OPTIMIZERS), (1, "overlap"), (3, "overlap"), (3, "sgd"), (4, "overlap")]
)
def test_an_inf_in_one_shard_skips_the_step_on_all_ranks(ranks: Ranks, world: int, name: str) -> None:
    ranks(world, _skips_on_all_ranks, name, STAGES if world == 2 else (3,), None)


@pytest.mark.parametrize("name", ["overlap", "sgd"])
def test_unscaled_gradients_may_be_clipped_before_the_step(ranks: Ranks, name: str) -> None:
    ranks(2, _skips_on_all_ranks, name, STAGES, LIMIT)


def _counts_taken_steps() -> None:
    run = Scaled("overlap")
    for spoiled in PROGRAM:
        run.step(spoiled)
    taken = sum(spoiled is None for spoiled in PROGRAM)
    assert {state["step"] for state in run.update.state.values()} == {taken}
    assert {int(state["step"]) for state in run.plain_update.state.values()} == {taken}


def test_skipped_steps_do_not_count_in_the_bias_correction(ranks: Ranks) -> None:
    ranks(2, _counts_taken_steps)


def _with_plain_parameters() -> None:
    """A parameter outside of the sharded model, in the same optimizer: its Inf on one rank counts as well."""
    run = Pair()
    outside = nn.Parameter(torch.ones(3))
    update = torch.optim.SGD([outside, *run.model.parameters()], lr=0.1)
    scaler = GradScaler("cpu", init_scale=8.0)
    scaler.scale(loss_of(run.model, run.rank, 0) + outside.sum()).backward()
    if run.rank == 0:
        outside.grad[1] = INF
    before = whole(run.model)
    scaler.step(update)
    scaler.update()
    assert_same_bits(whole(run.model), before)
    assert scaler.get_scale() == 4.0
    assert torch.equal(outside.detach(), torch.ones(3))


def test_plain_and_sharded_parameters_share_an_optimizer_and_a_scaler(ranks: Ranks) -> None:
    ranks(2, _with_plain_parameters)


def _over_copies() -> None:
    run = Scaled("sgd", _replicated_first, mesh=init_device_mesh("cpu", (2, 2)))
    for spoiled in PROGRAM:
        run.step()
        run.backward(lambda model, rank, step: run.scaler.scale(loss_of(model, rank, step)))
        run.plain_update.zero_grad()
        if spoiled is not None:
            grad = run.model.get_parameter(spoiled).grad
            assert grad is not None
            if grad.device_mesh.get_coordinate()[1] == 1 or not grad.placements[1].is_shard():  # in every copy alike
                grad.to_local().view(-1)[0] = INF
        before = whole(run.model)
        run.scaler.step(run.update)
        run.scaler.update(run.plain_scaler.get_scale())
        run.update.zero_grad()
        if spoiled is not None:
            assert_same_bits(whole(run.model), before, f"after {spoiled}")


def test_copies_of_the_model_skip_together(ranks: Ranks) -> None:
    ranks(4, _over_copies)


def _fsdp_scaler() -> None:
    run = Scaled("sgd", _replicated_first)
    run.scaler = ShardedGradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, about the shape of that scaler's own flag
        for spoiled in PROGRAM:
            run.step(spoiled)
    assert _same_scale(run) == 2.0**10
    run.check()


def test_the_scaler_of_fsdp_works_as_well(ranks: Ranks) -> None:
    ranks(2, _fsdp_scaler)
