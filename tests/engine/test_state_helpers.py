"""The helpers of ``torch.distributed.checkpoint.state_dict``: names come out, every field goes in, nothing changes."""

from functools import partial
from typing import Any

import pytest
import torch
from support.models import seeded
from support.pair import Sharded, assert_same_bits, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import overlap

FULL = StateDictOptions(full_state_dict=True)
ON_RANK_0 = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


TORCHS = {
    "adam foreach": partial(torch.optim.AdamW, lr=0.1, foreach=True),
    "adam fused": partial(torch.optim.AdamW, lr=0.1, fused=True),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
}


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    matrices = [param for param in model.parameters() if param.ndim == 2][::-1]
    vectors = [param for param in model.parameters() if param.ndim == 1]
    return [
        {"params": matrices, "lr": torch.tensor(2e-2), "name": "matrices"},
        {"params": vectors, "lr": 3e-2, "weight_decay": 0.0, "betas": (0.8, 0.9), "eps": 1e-5, "maximize": True},
        {"params": [], "lr": 0.25, "name": "empty"},
    ]


def _others(model: nn.Module) -> list[dict[str, Any]]:
    """The same members under other options."""
    return [{**group, "params": group["params"][::-1], "lr": 7.0, "betas": (0.1, 0.1)} for group in _groups(model)]


class _Run(Sharded):
    """Grouped, and trained for some steps."""

    def __init__(self, groups: Any = _groups, steps: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.update = overlap.AdamW(groups(self.model), lr=1.0)
        for _ in range(steps):
            self.step()


def _moments(run: Sharded) -> dict[str, Tensor]:
    return {
        f"{name} {key}": torch.tensor(value) if key == "step" else value.full_tensor().clone()
        for name, entry in run.update.state_dict()["state"].items()
        for key, value in entry.items()
    }


def _options(update: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in update.param_groups]


def _goes_on_alike(run: _Run, other: _Run) -> None:
    assert _options(other.update) == _options(run.update)
    assert isinstance(other.update.param_groups[0]["lr"], Tensor)
    assert_same_bits(_moments(other), _moments(run))
    other.model.load_state_dict(run.model.state_dict())
    other.steps = run.steps
    for each in (run, other):
        each.step()
    assert_same_bits(whole(other.model), whole(run.model))


def _gives_names() -> None:
    run = _Run(steps=2)
    state = get_optimizer_state_dict(run.model, run.update)
    plain = run.update.state_dict()
    assert state["state"].keys() == plain["state"].keys()
    assert [group["params"] for group in state["param_groups"]] == [group["params"] for group in plain["param_groups"]]
    assert state["state"]["head.weight"]["step"] == 2
    flat = get_optimizer_state_dict(run.model, run.update, options=FLAT)
    assert {"state.head.weight.exp_avg", "param_groups.head.bias.lr"} <= flat.keys()


def test_states_come_out_under_parameter_names(ranks: Ranks) -> None:
    ranks(2, _gives_names)


def _round_trip(options: StateDictOptions | None, out: StateDictOptions | None) -> None:
    run, other = _Run(steps=2), _Run(_others, steps=1)
    state = get_optimizer_state_dict(run.model, run.update, options=out)
    if options and options.broadcast_from_rank0 and run.rank:
        state = {}
    set_optimizer_state_dict(other.model, other.update, state, options=options)
    _goes_on_alike(run, other)


@pytest.mark.parametrize("kind", ["sharded", "full", "broadcast"])
def test_every_field_of_every_group_goes_in_again(ranks: Ranks, kind: str) -> None:
    options, out = {"sharded": (None, None), "full": (FULL, FULL), "broadcast": (FROM_RANK_0, ON_RANK_0)}[kind]
    ranks(2, _round_trip, options, out)


def _around() -> None:
    """A module around the sharded model: its names are longer than ours."""
    run, other = _Run(steps=2), _Run(steps=1)
    state = get_optimizer_state_dict(nn.ModuleDict({"net": run.model}), run.update)
    assert "net.head.weight" in state["state"]
    set_optimizer_state_dict(nn.ModuleDict({"net": other.model}), other.update, state)
    _goes_on_alike(run, other)


def test_a_module_around_the_sharded_one_may_be_passed(ranks: Ranks) -> None:
    ranks(2, _around)


def _tied() -> None:
    run, other = (_Run(steps=steps, traits={"tied": True}) for steps in (2, 1))
    state = get_optimizer_state_dict(run.model, run.update)
    set_optimizer_state_dict(other.model, other.update, state)
    _goes_on_alike(run, other)


def test_tied_parameters_round_trip(ranks: Ranks) -> None:
    ranks(2, _tied)


def _add_inert(model: nn.Module) -> None:
    """What no optimizer can change: integers, and a parameter without elements."""
    model.table = nn.Parameter(torch.arange(3), requires_grad=False)
    model.hollow = nn.Parameter(torch.empty(0, 4))


def _with_inert_parameters() -> None:
    run, other = (_Run(steps=steps, prepare=_add_inert) for steps in (2, 1))
    assert any(param is run.model.hollow for param in run.update.param_groups[0]["params"])
    state = get_optimizer_state_dict(nn.ModuleDict({"net": run.model}), run.update)
    set_optimizer_state_dict(nn.ModuleDict({"net": other.model}), other.update, state)
    _goes_on_alike(run, other)
    other.update.load_state_dict(run.update.state_dict())
    _goes_on_alike(run, other)
    assert torch.equal(run.model.table, torch.arange(3))


def test_integer_and_empty_parameters_may_be_in_groups(ranks: Ranks) -> None:
    ranks(2, _with_inert_parameters)


def _reading_changes_nothing(fresh: bool) -> None:
    read, unread = (_Run(steps=0 if fresh else 2) for _ in range(2))
    for options in (None, FULL, FLAT):
        get_optimizer_state_dict(read.model, read.update, options=options)
        read.update.state_dict()
    for run in (read, unread):
        for _ in range(3):
            run.step()
    assert_same_bits(whole(read.model), whole(unread.model))
    assert_same_bits(_moments(read), _moments(unread))


@pytest.mark.parametrize("fresh", [True, False])
def test_taking_states_changes_no_later_step(ranks: Ranks, fresh: bool) -> None:
    ranks(2, _reading_changes_nothing, fresh)


def _reading_torchs(name: str) -> None:
    read, unread = (Sharded(optimizer=TORCHS[name]) for _ in range(2))
    get_optimizer_state_dict(read.model, read.update)
    for run in (read, unread):
        for _ in range(3):
            run.step()
        counts = {float(state["step"]) for state in run.update.state.values() if "step" in state}
        assert counts <= {3.0}
    assert_same_bits(whole(read.model), whole(unread.model))


@pytest.mark.parametrize("name", TORCHS)
def test_taking_states_of_torchs_fresh_optimizers_changes_no_later_step(ranks: Ranks, name: str) -> None:
    ranks(2, _reading_torchs, name)


def _all_frozen() -> None:
    """torch takes a step with an optimizer that has no state yet, to see what there is."""
    model = seeded()
    model.requires_grad_(False)
    shard_blocks(model)
    update = overlap.AdamW(model.parameters())
    model.head.weight.requires_grad_(True)
    before = whole(model)
    assert get_optimizer_state_dict(model, update)["state"] == {}
    assert not update.state
    assert_same_bits(whole(model), before)


def test_an_optimizer_without_any_state_keeps_none(ranks: Ranks) -> None:
    ranks(2, _all_frozen)
