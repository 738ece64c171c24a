"""Optimizer state by name: out and in again, and nothing changes when it does not fit."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support.clear_error import clear_error
from support.copied import copied
from support.models import seeded
from support.pair import Sharded, assert_same_bits, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn

import overlap

State = dict[str, Any]


def _adamw(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return overlap.AdamW(params, lr=1e-2)


def _reversed(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return overlap.AdamW(list(params)[::-1], lr=0.5)


def _trained(steps: int = 2, **options: Any) -> Sharded:
    run = Sharded(optimizer=_adamw, **options)
    for _ in range(steps):
        run.step()
    return run


def _tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Moments by name, copied; steps as tensors."""
    return {
        f"{name} {key}": torch.tensor(value) if key == "step" else value.full_tensor().clone()
        for name, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
    }


def _is_keyed_by_name() -> None:
    run = _trained()
    state = run.update.state_dict()
    names = [name for name, _ in run.model.named_parameters()]
    assert sorted(state["state"]) == sorted(names)
    assert state["param_groups"][0]["params"] == names
    assert {entry["step"] for entry in state["state"].values()} == {2}


def test_state_is_keyed_by_parameter_name(ranks: Ranks) -> None:
    ranks(2, _is_keyed_by_name)


def _reading_changes_nothing() -> None:
    read, unread = _trained(0), _trained(0)
    for _ in range(2):
        read.update.state_dict()
        read.step()
        unread.step()
    assert_same_bits(whole(read.model), whole(unread.model))
    assert_same_bits(_tensors(read.update), _tensors(unread.update))


def test_reading_state_changes_nothing(ranks: Ranks) -> None:
    ranks(2, _reading_changes_nothing)


def _goes_on(build: Callable[..., torch.optim.Optimizer]) -> None:
    run, other = _trained(), Sharded(optimizer=build)
    other.model.load_state_dict(run.model.state_dict())
    other.update.load_state_dict(copied(run.update.state_dict()))
    other.steps = run.steps
    assert_same_bits(_tensors(other.update), _tensors(run.update))
    for _ in range(2):
        run.step()
        other.step()
    assert_same_bits(whole(other.model), whole(run.model))


@pytest.mark.parametrize("build", [_adamw, _reversed])
def test_training_goes_on_from_loaded_state_to_the_bit(
    ranks: Ranks, build: Callable[..., torch.optim.Optimizer]
) -> None:
    ranks(2, _goes_on, build)


def _moves_to_a_new_optimizer() -> None:
    run = _trained()
    before = _tensors(run.update)
    saved = run.update.state_dict()
    run.update = _adamw(run.model.parameters())
    run.update.load_state_dict(saved)
    assert_same_bits(_tensors(run.update), before)


def test_state_moves_to_a_new_optimizer_of_the_same_model(ranks: Ranks) -> None:
    ranks(2, _moves_to_a_new_optimizer)


def _interleaved(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Groups with all that users keep in them; the rate of the first is a tensor."""
    params = list(params)
    rate = torch.tensor(1e-2)
    return overlap.AdamW(
        [
            {"params": params[::2], "lr": rate, "name": "even", "notes": ["mine"]},
            {"params": [], "lr": 0.5},
            {"params": params[1::2], "betas": (0.7, 0.8), "eps": 1e-6, "weight_decay": 0.0, "initial_lr": 3.0},
        ]
    )


def _equal_rates(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    params = list(params)
    return overlap.AdamW([{"params": params[::2]}, {"params": []}, {"params": params[1::2]}], lr=1.0)


def _keeps_groups() -> None:
    run, other = Sharded(optimizer=_interleaved), Sharded(optimizer=_equal_rates)
    run.step()
    other.model.load_state_dict(run.model.state_dict())
    saved = run.update.state_dict()
    other.update.load_state_dict(saved)
    for group, given in zip(other.update.param_groups, run.update.param_groups, strict=True):
        assert {**group, "params": 0} == {**given, "params": 0}
    run.update.param_groups[0]["lr"].fill_(7.0)
    assert other.update.param_groups[0]["lr"].item() == pytest.approx(1e-2), "another tensor, to schedule for itself"
    run.update.param_groups[0]["lr"].fill_(1e-2)
    other.steps = run.steps
    for each in (run, other):
        each.step()
    assert_same_bits(whole(other.model), whole(run.model))


def test_every_field_of_every_group_comes_back(ranks: Ranks) -> None:
    ranks(2, _keeps_groups)


def _freeze_head(model: nn.Module) -> None:
    model.head.requires_grad_(False)


def _begins_late() -> None:
    """State that a parameter has got after its optimizer was built, in the saved run and in the one that loads."""
    runs = [Sharded(prepare=_freeze_head, optimizer=_adamw) for _ in range(2)]
    plain = seeded()
    torchs = torch.optim.AdamW(plain.head.parameters(), lr=1e-2)
    for number, run in enumerate(runs):
        assert not run.update.state[run.model.head.weight], "and reading has left an empty entry"
        assert "head.weight" not in run.update.state_dict()["state"]
        if number:
            spoiled = copied(runs[0].update.state_dict())
            spoiled["state"]["head.weight"]["exp_avg"] = torch.zeros(5, 5)
            with clear_error(overlap.ConfigError, "exp_avg of 'head.weight'"):
                run.update.load_state_dict(spoiled)
            assert not run.update.state[run.model.head.weight]
            run.model.load_state_dict(runs[0].model.state_dict())
            run.update.load_state_dict(runs[0].update.state_dict())
        for param, twin in zip(run.model.head.parameters(), plain.head.parameters(), strict=True):
            param.grad, twin.grad = torch.full_like(param, 0.5), torch.full_like(twin, 0.5)
        run.update.step()
        run.update.zero_grad()
        torchs.step()
        assert run.update.state[run.model.head.weight]["step"] == number + 1
        assert run.model.embedding.weight in run.update.state
        for name, value in whole(run.model.head).items():
            torch.testing.assert_close(value, plain.head.get_parameter(name).detach(), rtol=0, atol=1e-6)


def test_a_parameter_frozen_at_first_gets_its_moments_with_its_first_gradient(ranks: Ranks) -> None:
    ranks(2, _begins_late)


def _without_a_parameter(state: State) -> None:
    del state["state"]["head.bias"]


def _without_a_moment(state: State) -> None:
    del state["state"]["blocks.2.down.weight"]["exp_avg_sq"]


def _of_another_shape(state: State) -> None:
    state["state"]["head.weight"]["exp_avg"] = torch.zeros(5, 5)


def _whole_instead_of_rows(state: State) -> None:
    moment = state["state"]["head.weight"]["exp_avg"]
    state["state"]["head.weight"]["exp_avg"] = moment.redistribute(placements=[torch.distributed.tensor.Replicate()])


def _with_another_group(state: State) -> None:
    state["param_groups"].append({"params": [], "lr": 1.0})


def _with_other_members(state: State) -> None:
    state["param_groups"][0]["params"].remove("head.weight")


def _with_numbers_for_names(state: State) -> None:
    state["param_groups"][0]["params"] = list(range(len(state["param_groups"][0]["params"])))


def _without_members(state: State) -> None:
    del state["param_groups"][0]["params"]


def _with_a_wrong_value(state: State) -> None:
    state["param_groups"][0]["betas"] = (0.9, 2.0)


SPOILS = {
    _without_a_parameter: "head.bias",
    _without_a_moment: "exp_avg_sq of 'blocks.2.down.weight'",
    _of_another_shape: "exp_avg of 'head.weight'",
    _whole_instead_of_rows: "exp_avg of 'head.weight'",
    _with_another_group: "param_groups",
    _with_other_members: "param group 0",
    _with_numbers_for_names: "param group 0",
    _without_members: "params",
    _with_a_wrong_value: "betas[1]",
}


def _refuses() -> None:
    run, other = _trained(1), _trained(2)
    before, groups = _tensors(run.update), copied(run.update.state_dict()["param_groups"])
    for spoil, named in SPOILS.items():
        state = copied(other.update.state_dict())
        state["param_groups"][0]["lr"] = 0.7
        spoil(state)
        with clear_error(overlap.ConfigError, named):
            run.update.load_state_dict(state)
        assert_same_bits(_tensors(run.update), before, f"after {spoil.__name__}")
        assert run.update.state_dict()["param_groups"] == groups


def test_state_that_does_not_fit_is_refused_and_changes_nothing(ranks: Ranks) -> None:
    ranks(2, _refuses)


def _refuses_another_kind() -> None:
    run = _trained(1)
    foreign = torch.optim.SGD(shard_blocks(seeded()).parameters(), lr=0.1).state_dict()
    with clear_error(overlap.ConfigError, "param group 0"):
        run.update.load_state_dict(foreign)
    with clear_error(overlap.ConfigError, "param_groups"):
        run.update.load_state_dict({})


def test_state_of_another_optimizer_is_refused(ranks: Ranks) -> None:
    ranks(2, _refuses_another_kind)
