"""A gradient that is not finite on one rank: all ranks skip or all raise, nothing changes, and its name is told."""

import warnings
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.clear_error import clear_error
from support.models import loss_of
from support.overflow import INF, spoil
from support.pair import Sharded, assert_same_bits, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import overlap
from overlap.optim import flat_optimizer

STAGES = (0, 1, 2, 3)
NAN = float("nan")
SHARDED, REPLICATED = "blocks.1.down.weight", "blocks.1.norm.bias"


def _run(**options: Any) -> Sharded:
    names = ("max_grad_norm", "error_if_nonfinite")
    chosen = {name: options.pop(name) for name in names if name in options}
    return Sharded(optimizer=partial(overlap.AdamW, lr=1e-2, **chosen), **options)


def _everything(run: Sharded) -> dict[str, Tensor]:
    """Weights, moments and step counts."""
    state = run.update.state_dict()["state"]
    flat = {f"{name} {key}": value for name, entry in state.items() for key, value in entry.items()}
    whole_state = {
        key: torch.tensor(value) if isinstance(value, int) else value.full_tensor().clone()
        for key, value in flat.items()
    }
    return {**whole(run.model), **whole_state}


def _spoiled(run: Sharded, name: str, value: float) -> dict[str, Tensor]:
    """A backward with a bad gradient; what there is before the update."""
    before = _everything(run)
    run.backward()
    spoil(run.model, name, value)
    return before


def _skips(stage: int) -> None:
    for name, value in ((SHARDED, INF), (SHARDED, NAN), (REPLICATED, -INF)):
        run, twin = (_run(stage=stage, max_grad_norm=0.05, param_dtype=torch.bfloat16) for _ in range(2))
        run.step()
        twin.step()
        before = _spoiled(run, name, value)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.update.step()
        run.update.zero_grad()
        assert_same_bits(_everything(run), before, f"{value} in {name} at stage {stage}")
        assert run.update.skipped
        assert run.update.skipped_steps == 1
        assert not run.update.grad_norm.isfinite()
        texts = [str(each.message) for each in caught]
        assert len(texts) == (1 if run.rank == 0 else 0)
        assert all("at update 2" in text and "'blocks.1'" in text for text in texts), texts
        run.step()  # on the batch of the first step once more: goes on as if nothing had been
        twin.steps = 1
        twin.step()
        assert_same_bits(_everything(run), _everything(twin))


@pytest.mark.parametrize("stage", STAGES)
def test_one_bad_element_skips_the_step_on_all_ranks_to_the_bit(ranks: Ranks, stage: int) -> None:
    ranks(2, _skips, stage)


def _raises() -> None:
    for options in ({"error_if_nonfinite": True}, {"error_if_nonfinite": True, "max_grad_norm": 1.0}):
        run = _run(**options)
        before = _spoiled(run, SHARDED, INF)
        with clear_error(overlap.StateError, "inf at update 1", f"'{SHARDED}'"):
            run.update.step()
        assert_same_bits(_everything(run), before)
        run.update.zero_grad()
        run.step()
        assert run.update.skipped_steps == 0


def test_error_if_nonfinite_raises_on_all_ranks_before_anything_changes(ranks: Ranks) -> None:
    ranks(3, _raises)


def _names(stage: int) -> None:
    run = _run(stage=stage)
    assert overlap.nonfinite_gradients(run.model) == []
    run.backward()
    assert overlap.nonfinite_gradients(run.model) == []
    spoil(run.model, SHARDED, INF)
    spoil(run.model, REPLICATED, NAN)
    spoil(run.model, "head.weight", NAN)
    everywhere = (0, 1, 2)
    last = (2,) if stage else everywhere
    expected = [("head.weight", "", last), (SHARDED, "blocks.1", last), (REPLICATED, "blocks.1", everywhere)]
    assert overlap.nonfinite_gradients(run.model) == expected
    wrapped = nn.ModuleDict({"net": run.model, "outside": nn.Linear(2, 2)})
    wrapped["outside"].bias.grad = torch.tensor([1.0, INF])
    around = [(f"net.{name}", unit, where) for name, unit, where in expected]
    assert overlap.nonfinite_gradients(wrapped) == [("outside.bias", "", everywhere), *around]
    run.update.zero_grad()
    assert overlap.nonfinite_gradients(run.model) == []


@pytest.mark.parametrize("stage", STAGES)
def test_bad_gradients_are_named_from_the_loss_on_with_unit_and_ranks(ranks: Ranks, stage: int) -> None:
    ranks(3, _names, stage)


def _at_minimum(policy: str) -> None:
    run = _run()
    scaler = overlap.LossScaler(init_scale=8.0, min_scale=4.0, on_min_scale=policy)
    outcomes = []
    for _ in range(3):
        scaler.scale(loss_of(run.model, run.rank, run.steps)).backward()
        spoil(run.model, SHARDED)
        before = _everything(run)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run.update.step(scaler=scaler)
            except overlap.StateError as error:
                caught = [*caught, error]
        assert_same_bits(_everything(run), before, "state can be saved as it was")
        run.update.zero_grad()
        outcomes.append([str(getattr(each, "message", each)) for each in caught])
    assert scaler.state_dict()["scale"] == 4.0
    assert run.update.skipped_steps == 3
    assert outcomes[0] == [], "at 8 the scale can still fall"
    for texts in outcomes[1:]:
        assert len(texts) == (1 if policy == "raise" or run.rank == 0 else 0)
        for text in texts:
            assert all(word in text for word in ("min_scale 4", "norm of inf", "update 1", f"'{SHARDED}'")), text


@pytest.mark.parametrize("policy", ["warn", "raise"])
def test_overflow_at_the_minimum_scale_is_told_with_step_norm_and_name(ranks: Ranks, policy: str) -> None:
    ranks(2, _at_minimum, policy)


def _at_minimum_late() -> None:
    """Where the host learns late, it asks at once as soon as the scale may be at the minimum."""
    before, flat_optimizer.known_at_once = flat_optimizer.known_at_once, lambda device: False
    try:
        _at_minimum("raise")
    finally:
        flat_optimizer.known_at_once = before


def test_the_minimum_is_met_in_the_step_itself_also_where_the_host_learns_late(ranks: Ranks) -> None:
    ranks(2, _at_minimum_late)


def _caller_decides() -> None:
    """Clipping apart from the update: gradients stay as they were, and the caller passes the flag on."""
    run = _run()
    before = _spoiled(run, SHARDED, INF)
    gradients = {name: param.grad.to_local().clone() for name, param in run.model.named_parameters()}
    norm = overlap.clip_grad_norm_(run.model.parameters(), 0.05)
    for name, param in run.model.named_parameters():
        assert torch.equal(param.grad.to_local(), gradients[name]), "0 * inf would be NaN"
    run.update.step(skip=~norm.isfinite())
    assert_same_bits(_everything(run), before)
    assert run.update.skipped_steps == 1


def test_a_norm_from_clipping_decides_about_the_step(ranks: Ranks) -> None:
    ranks(2, _caller_decides)


def _over_copies() -> None:
    """Hybrid sharding: each copy finds the same, since reduced gradients are equal."""
    run = _run(mesh=init_device_mesh("cpu", (2, 2)), max_grad_norm=0.05)
    loss = loss_of(run.model, run.rank, 0)
    (loss * (INF if run.rank == 3 else 1.0)).backward()
    before = _everything(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        run.update.step()
    run.update.zero_grad()
    assert_same_bits(_everything(run), before)
    run.step()
    skipped: list[Any] = [None] * run.world
    dist.all_gather_object(skipped, run.update.skipped_steps)
    assert skipped == [1] * run.world


def test_a_bad_loss_on_one_rank_skips_the_step_on_all_copies(ranks: Ranks) -> None:
    ranks(4, _over_copies)
