"""Parameter groups: any split, any change between steps, and what users keep in them; as torch's AdamW does it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.clear_error import clear_error
from support.models import loss_of
from support.pair import Pair, Sharded, assert_same_bits, whole
from support.ranks import Ranks
from torch import nn

import overlap

STAGES = (0, 1, 2, 3)
# eps so large that a gradient of rounding noise does not become a step of size lr.
ARGUMENTS = {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1}
Groups = list[dict[str, Any]]
Split = Callable[[nn.Module], Groups]


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.ndim == 2]


def _vectors(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.ndim == 1]


def _two(model: nn.Module) -> Groups:
    return [{"params": _matrices(model)}, {"params": _vectors(model), "lr": 2e-2, "weight_decay": 0.0}]


def _with_empty_ones(model: nn.Module) -> Groups:
    return [{"params": []}, *_two(model), {"params": [], "lr": 5.0}]


def _with_tensor_rates(model: nn.Module) -> Groups:
    return [{**group, "lr": torch.tensor(group.get("lr", 1e-2))} for group in _two(model)]


def _of_one_parameter_each(model: nn.Module) -> Groups:
    return [{"params": param, "lr": 1e-3 * number} for number, param in enumerate(model.parameters())]


class Grouped(Pair):
    """Both models train with the same groups, one with our optimizer, one with torch's."""

    def __init__(self, split: Split, **options: Any) -> None:
        clip = {"max_grad_norm": options.pop("max_grad_norm", None)}
        super().__init__(**options)
        self.update = overlap.AdamW(split(self.model), **ARGUMENTS, **clip)
        self.plain_update = torch.optim.AdamW(split(self.plain), **ARGUMENTS)

    @property
    def both(self) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        return self.update, self.plain_update

    def check(self, when: str = "at the end") -> None:
        theirs = whole(self.plain)
        for name, value in whole(self.model).items():
            torch.testing.assert_close(
                value, theirs[name], rtol=0, atol=2e-6, msg=lambda text, n=name: f"{n} {when}: {text}"
            )


def _equals_torch(split: Split, stages: tuple[int, ...]) -> None:
    for stage in stages:
        pair = Grouped(split, stage=stage)
        for _ in range(4):
            pair.step()
        pair.check(f"at stage {stage}")


@pytest.mark.parametrize("split", [_two, _with_empty_ones, _with_tensor_rates, _of_one_parameter_each])
def test_groups_of_any_kind_train_as_torchs(ranks: Ranks, split: Split) -> None:
    ranks(2, _equals_torch, split, STAGES if split is _two else (3,))


def test_groups_of_one_small_parameter_step_and_clip_on_many_ranks(ranks: Ranks) -> None:
    ranks(4, _small_groups)


def _small_groups() -> None:
    pair = Grouped(_of_one_parameter_each, max_grad_norm=0.05)
    for _ in range(2):
        pair.backward(loss_of)
        norm = nn.utils.clip_grad_norm_(pair.plain.parameters(), 0.05)
        pair.apply()
        assert float(pair.update.grad_norm) == pytest.approx(float(norm), rel=1e-5)
        assert float(pair.update.clipped_grad_norm) == pytest.approx(0.05, rel=1e-4)
    pair.check()


def _change(update: torch.optim.Optimizer, step: int) -> None:
    """What schedulers and users do to groups."""
    first, second = update.param_groups
    first["lr"] *= 0.5
    if step == 1:
        second.update(betas=(0.5, 0.9), weight_decay=0.3, eps=1e-3, maximize=True)
    if step == 2:  # one moves to the other group
        second["params"].append(first["params"].pop(2))


def _follows_changes() -> None:
    pair = Grouped(_two)
    for step in range(4):
        pair.step()
        for update in pair.both:
            _change(update, step)
    pair.check()


def test_what_changes_in_a_group_holds_from_the_next_step_on(ranks: Ranks) -> None:
    ranks(2, _follows_changes)


def _schedules(make: Callable[[torch.optim.Optimizer], Any], split: Split) -> None:
    pair = Grouped(split)
    schedules = [make(update) for update in pair.both]
    for _ in range(5):
        pair.step()
        for schedule in schedules:
            schedule.step()
    rates = [[float(group["lr"]) for group in update.param_groups] for update in pair.both]
    assert rates[0] == pytest.approx(rates[1])
    assert rates[0][0] != rates[0][1]
    pair.check()


def _warmup(update: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(update, [lambda step: (step + 1) / 5, lambda step: 1.0 / (step + 1)])


def _one_cycle(update: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(update, max_lr=[1e-2, 3e-2], total_steps=6)


@pytest.mark.parametrize("make", [_warmup, _one_cycle])
@pytest.mark.parametrize("split", [_two, _with_tensor_rates])
def test_schedulers_drive_every_group(ranks: Ranks, make: Callable[..., Any], split: Split) -> None:
    ranks(2, _schedules, make, split)


def _moves_in_proportion() -> None:
    """Two rates on the same gradients: the first update of Adam is its rate, everywhere."""
    pair = Sharded()
    weight, bias = pair.model.head.weight, pair.model.head.bias
    update = overlap.AdamW([{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.2}], eps=0.0, weight_decay=0.0)
    before = whole(pair.model)
    pair.backward()
    update.step()
    moved = {name: (value - before[name]).abs() for name, value in whole(pair.model).items()}
    assert float(moved["head.weight"].median()) == pytest.approx(0.1, rel=1e-5)
    assert float(moved["head.bias"].median()) == pytest.approx(0.2, rel=1e-5)
    assert not moved["embedding.weight"].any()


def test_each_group_moves_at_its_own_rate(ranks: Ranks) -> None:
    ranks(2, _moves_in_proportion)


def _adds_later(stage: int) -> None:
    pair = Grouped(lambda model: [{"params": _matrices(model)}], stage=stage)
    for step in range(4):
        if step == 2:
            for model, update in ((pair.model, pair.update), (pair.plain, pair.plain_update)):
                update.add_param_group({"params": _vectors(model), "lr": 3e-2})
        pair.step()
    pair.check(f"at stage {stage}")
    assert {state["step"] for state in pair.update.state.values()} == {2, 4}


@pytest.mark.parametrize("stage", STAGES)
def test_a_group_may_be_added_during_training(ranks: Ranks, stage: int) -> None:
    ranks(2, _adds_later, stage)


def _refused_group_is_not_added() -> None:
    run = Sharded(optimizer=lambda params: overlap.AdamW(list(params)[1:], **ARGUMENTS))
    first = next(run.model.parameters())
    for group in ({"params": [first], "lr": -1.0}, {"params": [nn.Parameter(torch.ones(2))]}):
        with clear_error(overlap.ConfigError, "lr" if "lr" in group else "parameter"):
            run.update.add_param_group(group)
        assert len(run.update.param_groups) == 1
    run.step()
    assert first not in run.update.state


def test_a_group_that_is_refused_is_not_added(ranks: Ranks) -> None:
    ranks(2, _refused_group_is_not_added)


def _named() -> None:
    pair = Pair()
    pair.update = overlap.AdamW(pair.model.named_parameters(), **ARGUMENTS)
    other = Sharded(optimizer=lambda params: overlap.AdamW(params, **ARGUMENTS))
    pair.step()
    names = [name for name, _ in pair.model.named_parameters()]
    assert pair.update.param_groups[0]["param_names"] == names
    assert pair.update.state_dict()["param_groups"][0]["param_names"] == names
    other.update.load_state_dict(pair.update.state_dict())
    assert "param_names" not in other.update.param_groups[0], "what parameters are called is the builder's affair"
    other.model.load_state_dict(pair.model.state_dict())
    other.steps = 1
    pair.step()
    other.step()
    assert_same_bits(whole(pair.model), whole(other.model))


def test_parameters_may_come_with_names(ranks: Ranks) -> None:
    ranks(2, _named)


def _freezes_a_group(stage: int) -> None:
    """A group that is frozen for a while keeps weights, moments and count, and goes on from there."""
    pair = Grouped(_two, stage=stage)
    for step in range(6):
        for model in (pair.model, pair.plain):
            for param in _vectors(model):
                param.requires_grad_(step not in (2, 3))
        pair.step()
    pair.check(f"at stage {stage}")
    assert {state["step"] for state in pair.update.state.values()} == {4, 6}


@pytest.mark.parametrize("stage", STAGES)
def test_a_group_may_be_frozen_for_a_while(ranks: Ranks, stage: int) -> None:
    ranks(2, _freezes_a_group, stage)


def _freeze_blocks(model: nn.Module) -> None:
    model.blocks.requires_grad_(False)


def _unfreezes(stage: int) -> None:
    """Frozen when sharded and when the optimizer was built: moments begin with the first gradient."""
    pair = Grouped(_two, stage=stage, prepare=_freeze_blocks, max_grad_norm=0.05)
    for step in range(6):
        for model in (pair.model, pair.plain):
            model.blocks[1].requires_grad_(step in (2, 3, 5))
        pair.backward(loss_of)
        norm = nn.utils.clip_grad_norm_(pair.plain.parameters(), 0.05)
        pair.apply()
        assert float(pair.update.grad_norm) == pytest.approx(float(norm), rel=1e-5)
    pair.check(f"at stage {stage}")
    steps = {name: pair.update.state[param].get("step") for name, param in pair.model.named_parameters()}
    assert {name.split(".")[1]: step for name, step in steps.items() if name.startswith("blocks")}["1"] == 3
    assert {step for name, step in steps.items() if not name.startswith("blocks")} == {6}


@pytest.mark.parametrize("stage", STAGES)
def test_a_group_that_was_frozen_from_the_start_may_join_later(ranks: Ranks, stage: int) -> None:
    ranks(2, _unfreezes, stage)


def _by_hand() -> None:
    """Gradients that no backward has made, before the first forward."""
    pair = Grouped(_two, max_grad_norm=1.0)
    for mine, theirs in zip(pair.model.parameters(), pair.plain.parameters(), strict=True):
        mine.grad, theirs.grad = torch.ones_like(mine), torch.ones_like(theirs)
    nn.utils.clip_grad_norm_(pair.plain.parameters(), 1.0)
    pair.apply()
    pair.check()
    pair.backward(loss_of)
    nn.utils.clip_grad_norm_(pair.plain.parameters(), 1.0)
    pair.apply()
    pair.check("after a backward")


def test_gradients_set_by_hand_before_the_first_forward_are_used(ranks: Ranks) -> None:
    ranks(2, _by_hand)
