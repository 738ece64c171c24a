"""Muon's state by name: out and in again, also from torch's Muon; nothing changes when it does not fit."""

from typing import Any

import pytest
import torch
from support.clear_error import clear_error
from support.copied import copied
from support.matrices import MuonPair, give_gradients, seeded, sharded
from support.pair import assert_same_bits, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

import overlap

FORMS = {
    "sharded": StateDictOptions(),
    "full": StateDictOptions(full_state_dict=True),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
}


def _trained(steps: int = 2, **options: Any) -> MuonPair:
    pair = MuonPair(**options)
    for _ in range(steps):
        pair.step()
    return pair


def _tensors(pair: MuonPair) -> dict[str, Tensor]:
    entries = pair.update.state_dict()["state"].items()
    return {f"{name} {key}": value.full_tensor().clone() for name, entry in entries for key, value in entry.items()}


def _is_keyed_by_name() -> None:
    pair = _trained()
    state = pair.update.state_dict()
    matrices = [name for name, param in pair.model.named_parameters() if param.ndim > 1]
    assert sorted(state["state"]) == sorted(matrices)
    assert {frozenset(entry) for entry in state["state"].values()} == {frozenset(["momentum_buffer"])}
    assert state["state"]["experts"]["momentum_buffer"].shape == (4, 16, 8)
    assert [group["params"] for group in state["param_groups"]][1] == ["experts", "few"]
    assert {group["stacked"] for group in state["param_groups"]} == {None, True}


def test_state_is_keyed_by_parameter_name(ranks: Ranks) -> None:
    ranks(2, _is_keyed_by_name)


def _goes_on(stage: int) -> None:
    pair, other = _trained(stage=stage), MuonPair(stage=stage, options={"lr": 0.5, "momentum": 0.1})
    other.model.load_state_dict(pair.model.state_dict())
    other.update.load_state_dict(copied(pair.update.state_dict()))
    assert_same_bits(_tensors(other), _tensors(pair))
    for step in range(2):
        for each in (pair, other):
            give_gradients(each.model, step)
            each.update.step()
    assert_same_bits(whole(other.model), whole(pair.model))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_training_goes_on_from_loaded_state_to_the_bit(ranks: Ranks, stage: int) -> None:
    ranks(2, _goes_on, stage)


def _goes_through_the_helpers(form: str) -> None:
    pair, other = _trained(), MuonPair(options={"lr": 0.5, "momentum": 0.1})
    before = _tensors(pair)
    saved = get_optimizer_state_dict(pair.model, pair.update, options=FORMS[form])
    assert_same_bits(_tensors(pair), before, "after reading")
    set_optimizer_state_dict(other.model, other.update, saved, options=FORMS[form])
    assert_same_bits(_tensors(other), before)
    for mine, theirs in zip(other.update.param_groups, pair.update.param_groups, strict=True):
        assert {**mine, "params": 0} == {**theirs, "params": 0}


@pytest.mark.parametrize("form", FORMS)
def test_state_goes_through_torchs_helpers(ranks: Ranks, form: str) -> None:
    ranks(2, _goes_through_the_helpers, form)


def _moves_from_torch() -> None:
    """A run that began with torch's Muon on the sharded model goes on with ours, and back."""
    models = [sharded() for _ in range(2)]
    theirs, ours = (
        make([param for param in model.parameters() if param.ndim == 2], lr=0.02, momentum=0.9)
        for make, model in zip((torch.optim.Muon, overlap.Muon), models, strict=True)
    )
    for step in range(2):
        give_gradients(models[0], step)
        theirs.step()
    set_optimizer_state_dict(models[1], ours, get_optimizer_state_dict(models[0], theirs))
    for param, twin in zip(*(model.parameters() for model in models), strict=True):
        if param.ndim == 2:
            assert torch.equal(_rows(theirs.state[param]), _rows(ours.state[twin]))
    back = torch.optim.Muon(theirs.param_groups[0]["params"], lr=0.5)
    set_optimizer_state_dict(models[0], back, get_optimizer_state_dict(models[1], ours))
    for param in theirs.param_groups[0]["params"]:
        assert torch.equal(_rows(theirs.state[param]), _rows(back.state[param]))


def _rows(state: dict[str, Any]) -> Tensor:
    buffer = state["momentum_buffer"]
    assert isinstance(buffer, DTensor)
    return buffer.to_local()


def test_state_moves_from_torchs_muon_and_back(ranks: Ranks) -> None:
    ranks(2, _moves_from_torch)


def _frozen() -> nn.Module:
    model = seeded()
    model.square.requires_grad_(False)
    return overlap.shard(model, unit="*", replicate_max_numel=37)


def _begins_late() -> None:
    """Momentum that a parameter gets after its optimizer was built, in the saved run and in the one that loads."""
    model, other = (_frozen() for _ in range(2))
    updates = [overlap.Muon([each.square.weight, each.up.weight], lr=0.1) for each in (model, other)]
    assert "square.weight" not in updates[0].state_dict()["state"]
    give_gradients(model, 0)
    updates[0].step()
    assert "square.weight" in updates[0].state_dict()["state"]
    other.load_state_dict(model.state_dict())
    updates[1].load_state_dict(updates[0].state_dict())
    for each, update in zip((model, other), updates, strict=True):
        give_gradients(each, 1)
        update.step()
    assert_same_bits(whole(other), whole(model))


def test_a_parameter_frozen_at_first_gets_its_momentum_with_its_first_gradient(ranks: Ranks) -> None:
    ranks(2, _begins_late)


def _without_a_parameter(state: dict[str, Any]) -> None:
    del state["state"]["up.weight"]


def _of_another_optimizer(state: dict[str, Any]) -> None:
    state["state"]["up.weight"] = {"exp_avg": state["state"]["up.weight"]["momentum_buffer"]}


def _with_a_wrong_value(state: dict[str, Any]) -> None:
    state["param_groups"][0]["ns_steps"] = -1


def _seen_otherwise(state: dict[str, Any]) -> None:
    state["param_groups"][1]["stacked"] = None


SPOILS = {
    _without_a_parameter: "up.weight",
    _of_another_optimizer: "momentum_buffer of 'up.weight'",
    _with_a_wrong_value: "ns_steps",
    _seen_otherwise: "'experts'",
}


def _refuses() -> None:
    pair, other = _trained(1), _trained(2)
    before, groups = _tensors(pair), copied(pair.update.state_dict()["param_groups"])
    for spoil, named in SPOILS.items():
        state = copied(other.update.state_dict())
        spoil(state)
        with clear_error(overlap.ConfigError, named):
            pair.update.load_state_dict(state)
        assert_same_bits(_tensors(pair), before, f"after {spoil.__name__}")
        assert pair.update.state_dict()["param_groups"] == groups


def test_state_that_does_not_fit_is_refused_and_changes_nothing(ranks: Ranks) -> None:
    ranks(2, _refuses)
