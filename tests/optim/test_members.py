"""What is remembered of parameters is never old: whatever changes between steps, training is as with torch's AdamW."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import loss_of, seeded
from support.pair import Pair, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn

import overlap
from overlap.optim.members import Members
from overlap.shard.flat import home_of

Change = Callable[[torch.optim.Optimizer, nn.Module], Any]


class Changing(Pair):
    """Both models train with AdamW, one with ours; whatever is done to the one optimizer is done to the other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.forget_groups()

    def forget_groups(self, count: int | None = None) -> None:
        """Begin anew, with the first parameters alone."""
        arguments = {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1}  # a gradient of rounding noise is no step of size lr
        self.update = overlap.AdamW([*self.model.parameters()][:count], **arguments)
        self.plain_update = torch.optim.AdamW([*self.plain.parameters()][:count], **arguments)

    def train(self, steps: int = 2) -> None:
        for _ in range(steps):
            self.step()

    def change(self, change: Change) -> None:
        change(self.update, self.model)
        change(self.plain_update, self.plain)

    def check(self, when: str = "at the end") -> None:
        theirs = whole(self.plain)
        for name, value in whole(self.model).items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=2e-6, msg=lambda text, n=name: f"{n}: {text}")


def _split(update: torch.optim.Optimizer, model: nn.Module) -> None:
    first = update.param_groups[0]
    update.param_groups = [
        {**first, "params": first["params"][:4]},
        {**first, "params": first["params"][4:], "lr": 0.1},
    ]


def _rest_added(update: torch.optim.Optimizer, model: nn.Module) -> None:
    update.add_param_group({"params": [*model.parameters()][4:], "lr": 3e-2})


def _replaced(update: torch.optim.Optimizer, model: nn.Module) -> None:
    update.param_groups[0] = {**update.param_groups[0], "lr": 5e-2}


def _reversed(update: torch.optim.Optimizer, model: nn.Module) -> None:
    update.param_groups[0]["params"].reverse()
    update.param_groups[0]["weight_decay"] = 0.3


def _swapped(update: torch.optim.Optimizer, model: nn.Module) -> None:
    """Two groups of one size exchange their parameters."""
    _split(update, model)
    middle = len(update.param_groups[0]["params"])
    first, second = (group["params"] for group in update.param_groups)
    first[:], second[:middle] = second[:middle], first[:]


def _taken_out(update: torch.optim.Optimizer, model: nn.Module) -> None:
    del update.param_groups[0]["params"][1::2]


def _counted_apart(update: torch.optim.Optimizer, model: nn.Module) -> None:
    """States put in by hand: another count for every third parameter."""
    for param in [*model.parameters()][::3]:
        state = update.state[param]
        update.state[param] = {**state, "step": state["step"] + 5}


def _states_in_another_order(update: torch.optim.Optimizer, model: nn.Module) -> None:
    _counted_apart(update, model)
    for param in [*update.state][:3]:
        update.state[param] = update.state.pop(param)


def _states_in_another_table(update: torch.optim.Optimizer, model: nn.Module) -> None:
    _counted_apart(update, model)
    update.state = dict(reversed(update.state.items()))


def _rate_is_a_tensor(update: torch.optim.Optimizer, model: nn.Module) -> None:
    update.param_groups[0]["lr"] = torch.tensor(3e-2)


CHANGES = [_split, _replaced, _reversed, _swapped, _taken_out, _rate_is_a_tensor]
CHANGES += [_counted_apart, _states_in_another_order, _states_in_another_table]


def _changes(changes: list[Change], stage: int) -> None:
    for change in changes:
        pair = Changing(stage=stage)
        pair.train()
        pair.change(change)
        pair.train()
        pair.check()


@pytest.mark.parametrize("stage", [1, 3])
def test_changes_between_steps_count_at_once(ranks: Ranks, stage: int) -> None:
    ranks(2, _changes, CHANGES, stage)


def _a_group_is_added() -> None:
    pair = Changing()
    pair.forget_groups(4)
    pair.train()
    pair.change(_rest_added)
    pair.train()
    pair.update.param_groups[1]["lr"] = pair.plain_update.param_groups[1]["lr"] = 0.0
    pair.train()
    pair.check()


def test_a_group_may_be_added_after_steps(ranks: Ranks) -> None:
    ranks(2, _a_group_is_added)


def _some_have_no_gradient() -> None:
    """Of every flat some, in the middle of training: then all again, with counts that differ."""
    pair = Changing()
    pair.train()
    pair.backward()
    for model in (pair.model, pair.plain):
        for param in [*model.parameters()][::2]:
            param.grad = None
    counts = [state["step"] for state in pair.update.state.values()]
    pair.apply()
    grown = [state["step"] - count for state, count in zip(pair.update.state.values(), counts, strict=True)]
    assert grown == [number % 2 for number in range(len(grown))]
    pair.train()
    pair.check()


def test_parameters_without_gradient_are_left_alone_for_one_step(ranks: Ranks) -> None:
    ranks(2, _some_have_no_gradient)


def _foreign_gradients() -> None:
    pair = Changing()
    pair.train()
    pair.backward()
    overlap.clip_grad_norm_(pair.model.parameters(), 1e9)  # has met ours
    for param in [*pair.model.parameters()][::3]:
        param.grad = param.grad * 0.5
    for param in [*pair.plain.parameters()][::3]:
        param.grad = param.grad * 0.5
    mine = overlap.clip_grad_norm_(pair.model.parameters(), 0.05)
    theirs = torch.nn.utils.clip_grad_norm_(pair.plain.parameters(), 0.05)
    torch.testing.assert_close(mine, theirs)
    pair.apply()
    pair.train()
    pair.check()


def test_gradients_put_in_place_of_ours_count(ranks: Ranks) -> None:
    ranks(2, _foreign_gradients)


def _states_are_loaded() -> None:
    pair = Changing()
    pair.train(1)
    saved = [{**update.state_dict()} for update in (pair.update, pair.plain_update)]
    saved[0]["state"] = {
        name: {key: _copied(value) for key, value in state.items()} for name, state in saved[0]["state"].items()
    }
    saved[1]["state"] = {
        number: {key: value.clone() for key, value in state.items()} for number, state in saved[1]["state"].items()
    }
    pair.train()
    pair.update.load_state_dict(saved[0])
    pair.plain_update.load_state_dict(saved[1])
    assert {state["step"] for state in pair.update.state.values()} == {1}
    pair.train()
    pair.check()


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def test_loaded_states_count_at_once(ranks: Ranks) -> None:
    ranks(2, _states_are_loaded)


def _freezes() -> None:
    """A parameter that is frozen in between, and one that gets its first gradient after steps of the others."""
    pair = Changing(prepare=lambda model: _require(model, 1, wanted=False))
    pair.forget_groups()
    pair.train()
    for model in (pair.model, pair.plain):
        _require(model, 1, wanted=True)
        _require(model, 0, wanted=False)
    pair.train()
    for model in (pair.model, pair.plain):
        _require(model, 0, wanted=True)
    pair.train()
    pair.check()


def _require(model: nn.Module, first: int, *, wanted: bool) -> None:
    for param in [*model.parameters()][first::3]:
        param.requires_grad_(wanted)


def test_parameters_may_be_frozen_and_unfrozen_between_steps(ranks: Ranks) -> None:
    ranks(2, _freezes)


# -- what is kept ------------------------------------------------------------------------------------------------


def _found() -> None:
    model = shard_blocks(seeded())
    params = [*model.parameters()]
    others = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    members = Members()
    for asked in (params, params[::-1], params[::2], [*params, params[0]], [others[0], *params, others[1]], params):
        for _ in range(2):  # found, and remembered
            shares, plain = members.find(asked)
            once = [*dict.fromkeys(asked)]
            assert {*plain} == {*once} & {*others}
            placed = {at: behind for share in shares for at, behind in zip(share.positions, share.params, strict=True)}
            assert all(asked[at] is behind.public for at, behind in placed.items())
            assert len(placed) + len(plain) == len(once)
            assert all(home_of(each.public).flat is share.flat for share in shares for each in share.params)


def test_each_parameter_is_found_once_where_it_lies(ranks: Ranks) -> None:
    ranks(2, _found)


def _keeps_nothing(clip: bool) -> None:
    model = shard_blocks(seeded())
    params = [*model.parameters()]
    update = overlap.AdamW(params)
    loss_of(model, 0, 0).backward()
    if clip:
        overlap.clip_grad_norm_(params, 1.0)
    update.step()
    update.zero_grad()
    gone = [weakref.ref(thing) for param in params for thing in home_of(param)]
    del model
    gc.collect()
    assert not [ref for ref in gone if ref() is not None]
    with pytest.raises(overlap.ConfigError, match="sharded model"):
        update.step()


@pytest.mark.parametrize("clip", [False, True])
def test_parameters_and_optimizers_that_outlive_a_model_keep_nothing_of_it(ranks: Ranks, clip: bool) -> None:
    ranks(1, _keeps_nothing, clip)
