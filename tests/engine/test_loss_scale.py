"""Our scaler trains as torch's GradScaler does in one process: same scales, same skipped steps, same weights."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.clear_error import clear_error
from support.models import loss_of
from support.overflow import Half, spoil
from support.pair import Pair, Sharded, add_gradients, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.amp import GradScaler

import overlap
from overlap.optim import flat_optimizer

STAGES = (0, 1, 2, 3)
LIMIT = 0.05
SHARDED, REPLICATED = "head.weight", "blocks.1.norm.bias"
# What is spoiled before each step. With growth after two good steps in a row the scale rises and falls.
PROGRAM = (None, SHARDED, None, None, REPLICATED, None, None)
# eps so large that a gradient of rounding noise does not become a step of size lr.
ADAM = {"lr": 1e-2, "eps": 1e-4}
SETTINGS = {"init_scale": 2.0**10, "growth_interval": 2}


class Scaled(Pair):
    """The sharded model trains with our optimizer and scaler, the plain one with torch's."""

    def __init__(self, max_norm: float | None = None, settings: Any = None, **options: Any) -> None:
        super().__init__(optimizer=partial(torch.optim.AdamW, **ADAM), **options)
        self.update = overlap.AdamW(self.model.parameters(), **ADAM, max_grad_norm=max_norm)
        self.max_norm, settings = max_norm, settings or SETTINGS
        self.scaler, self.plain_scaler = overlap.LossScaler(**settings), GradScaler("cpu", **settings)
        self.plain_scaler.scale(torch.zeros(()))
        self.seen = Half(self.plain) if options.get("param_dtype") is torch.float16 else self.plain

    def step(self, spoiled: str | None = None) -> None:
        """One step of each."""
        scale = self.plain_scaler.get_scale()
        self.scaler.scale(loss_of(self.model, self.rank, self.steps)).backward()
        assert self.scaler.get_scale() == scale, f"at step {self.steps}"
        add_gradients(self.plain, self.world, lambda rank: [loss_of(self.seen, rank, self.steps) * scale])
        if spoiled is not None:
            spoil(self.model, spoiled)
            spoil(self.plain, spoiled)
        self.update.step(scaler=self.scaler)
        self.plain_step()
        self.update.zero_grad()
        self.steps += 1

    def plain_step(self) -> None:
        """What torch's tutorial does."""
        self.plain_scaler.unscale_(self.plain_update)
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.plain.parameters(), self.max_norm)
        self.plain_scaler.step(self.plain_update)
        self.plain_scaler.update()
        self.plain_update.zero_grad()

    def check(self, when: str = "at the end") -> None:
        """Weights agree to rounding, scaler states exactly, on all ranks."""
        theirs = whole(self.plain)
        for name, value in whole(self.model).items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=2e-6, msg=lambda text, n=name: f"{n} {text}")
        states: list[Any] = [None] * self.world
        dist.all_gather_object(states, self.scaler.state_dict())
        assert states == [self.plain_scaler.state_dict()] * self.world, when


def _equals_grad_scaler(stages: tuple[int, ...], max_norm: float | None) -> None:
    for stage in stages:
        run = Scaled(max_norm, stage=stage, poison=True)
        for spoiled in PROGRAM:
            run.step(spoiled)
        run.check(f"at stage {stage}")
        assert {state["step"] for state in run.update.state.values()} == {5}
        assert {int(state["step"]) for state in run.plain_update.state.values()} == {5}
        assert run.update.skipped_steps == 2


@pytest.mark.parametrize("max_norm", [None, LIMIT])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_it_trains_as_torchs_scaler_in_one_process(ranks: Ranks, world: int, max_norm: float | None) -> None:
    ranks(world, _equals_grad_scaler, STAGES if world == 2 else (3,), max_norm)


def _fp16(stage: int) -> None:
    run = Scaled(settings={"init_scale": 2.0**24, "growth_interval": 4}, stage=stage, param_dtype=torch.float16)
    for _ in range(12):
        run.step()
    run.check(f"at stage {stage}")
    assert 2 <= run.update.skipped_steps <= 8, "fp16 overflows at this scale, and then no more"


@pytest.mark.parametrize("stage", STAGES)
def test_fp16_overflows_skips_and_trains_on(ranks: Ranks, stage: int) -> None:
    ranks(2, _fp16, stage)


def _deferred() -> None:
    """As on CUDA, where the host learns at the next step whether one was taken."""
    before, flat_optimizer.known_at_once = flat_optimizer.known_at_once, lambda device: False
    try:
        run = Scaled()
        for number, spoiled in enumerate(PROGRAM):
            run.step(spoiled)
            counted = sum(each is None for each in PROGRAM[:number])
            assert run.update.state[run.model.head.weight]["step"] == counted
        assert run.update.state_dict()["state"]["head.weight"]["step"] == 5
        run.check()
    finally:
        flat_optimizer.known_at_once = before


def test_steps_count_right_when_the_host_learns_of_them_late(ranks: Ranks) -> None:
    ranks(2, _deferred)


def _scaled_run(**settings: Any) -> tuple[Sharded, overlap.LossScaler]:
    return Sharded(optimizer=partial(overlap.AdamW, **ADAM)), overlap.LossScaler(**{**SETTINGS, **settings})


def _same_scale_for_all() -> None:
    """Two optimizers over one backward: the second unscales as the first did, and both decide about the scale."""
    run, scaler = _scaled_run()
    params = list(run.model.parameters())
    updates = [overlap.AdamW(params[start::2], **ADAM) for start in range(2)]
    single = Scaled()
    for spoiled in PROGRAM:
        scaler.scale(loss_of(run.model, run.rank, run.steps)).backward()
        if spoiled is not None:
            spoil(run.model, spoiled)
        for update in updates:
            scaler.step(update)
        scaler.update()
        run.model.zero_grad()
        run.steps += 1
        single.step(spoiled)
    assert scaler.state_dict() == single.scaler.state_dict()
    assert sorted(update.skipped_steps for update in updates) != [2, 2], "only who has the Inf skips, as in torch"


def test_optimizers_share_a_scaler_and_one_overflow_lowers_it_for_all(ranks: Ranks) -> None:
    ranks(2, _same_scale_for_all)


def _accumulates() -> None:
    whole_batch, parts = (_scaled_run() for _ in range(2))
    for run, scaler in (whole_batch, parts):
        losses = [partial(loss_of, run.model, run.rank, step) for step in range(3)]
        if run is parts[0]:
            for number, loss in enumerate(losses):
                run.model.set_requires_gradient_sync(number == 2)
                scaler.scale(loss()).backward()
        else:
            torch.stack(scaler.scale([loss() for loss in losses])).sum().backward()
        scaler.step(run.update)
    for name, value in whole(whole_batch[0].model).items():
        torch.testing.assert_close(value, whole(parts[0].model)[name], rtol=0, atol=1e-6)


def test_micro_batches_have_one_scale(ranks: Ranks) -> None:
    ranks(2, _accumulates)


def _state_moves() -> None:
    run, scaler = _scaled_run()
    for spoiled in (None, SHARDED, None):
        scaler.scale(loss_of(run.model, run.rank, 0)).backward()
        if spoiled is not None:
            spoil(run.model, spoiled)
        scaler.step(run.update)
        run.update.zero_grad()
    saved = scaler.state_dict()
    assert saved == {**saved, "scale": 2.0**9, "_growth_tracker": 1}, "also what no update() has taken in yet"
    other = overlap.LossScaler()
    other.load_state_dict(saved)
    torchs = GradScaler("cpu")
    torchs.load_state_dict(saved)
    back = overlap.LossScaler()
    back.load_state_dict(torchs.state_dict())
    assert other.state_dict() == torchs.state_dict() == back.state_dict() == saved


def test_state_moves_to_another_scaler_also_torchs(ranks: Ranks) -> None:
    ranks(2, _state_moves)


def _found(pattern: str, **settings: Any) -> list[float]:
    scaler, scales = overlap.LossScaler(**settings), []
    for mark in pattern:
        scaler.scale(torch.zeros(()))
        scaler.note(torch.tensor([float(mark == "x")]))
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def test_the_scale_stays_between_its_limits() -> None:
    limits = {"init_scale": 8.0, "growth_interval": 1, "min_scale": 3.0, "max_scale": 20.0}
    assert _found("xx..", **limits) == [4.0, 3.0, 6.0, 12.0]
    assert _found("...x", **limits) == [16.0, 20.0, 20.0, 10.0]


def test_arguments_out_of_range_are_refused() -> None:
    wrong = {
        "growth_factor": 0.5,
        "backoff_factor": 1.0,
        "growth_interval": 0,
        "min_scale": 0.0,
        "on_min_scale": "ignore",
    }
    for name, value in wrong.items():
        with clear_error(overlap.ConfigError, name, str(value)):
            overlap.LossScaler(**{name: value})
    with clear_error(overlap.ConfigError, "scale", "min_scale, 1", "0.5"):
        overlap.LossScaler(init_scale=0.5)
    with clear_error(overlap.ConfigError, "tensor", "str"):
        overlap.LossScaler().scale("loss")


def test_state_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    scaler = overlap.LossScaler()
    before = scaler.state_dict()
    with clear_error(overlap.ConfigError, "growth_factor", "state_dict"):
        scaler.load_state_dict({"scale": 2.0})
    with clear_error(overlap.ConfigError, "scale", "max_scale"):
        scaler.load_state_dict({**before, "growth_interval": 5, "scale": 2.0**30})
    assert scaler.state_dict() == before


def _misused() -> None:
    run, scaler = _scaled_run()
    with clear_error(overlap.StateError, "scaler.scale(loss)"):
        run.update.step(scaler=scaler)
    scaler.scale(loss_of(run.model, run.rank, 0)).backward()
    scaler.step(run.update)
    scaler.update()
    with clear_error(overlap.StateError, "scaler.scale(loss)"):
        scaler.step(run.update)
    with clear_error(overlap.ConfigError, "SGD", "torch.amp.GradScaler"):
        scaler.step(torch.optim.SGD(run.model.parameters(), lr=0.1))


def test_a_step_without_a_scaled_loss_and_foreign_optimizers_are_refused(ranks: Ranks) -> None:
    ranks(1, _misused)


def _disabled() -> None:
    run, scaler = _scaled_run(enabled=False)
    twin = Sharded(optimizer=partial(overlap.AdamW, **ADAM))
    for _ in range(2):
        loss: Tensor = loss_of(run.model, run.rank, run.steps)
        assert scaler.scale(loss) is loss
        loss.backward()
        run.update.step(scaler=scaler) if run.steps else scaler.step(run.update)
        run.update.zero_grad()
        run.steps += 1
        twin.step()
    assert scaler.state_dict() == {}
    for name, value in whole(run.model).items():
        assert torch.equal(value, whole(twin.model)[name])


def test_a_scaler_that_is_not_enabled_changes_nothing(ranks: Ranks) -> None:
    ranks(2, _disabled)
