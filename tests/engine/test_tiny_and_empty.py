"""Parameters of no element, of one, and of fewer than there are ranks: trained, clipped, saved as any other."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.chain import WIDTH, data
from support.pair import assert_same_bits, whole
from support.ranks import Ranks
from support.twins import Twins
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import overlap

STAGES = (0, 1, 2, 3)
WORLD = 4
Build = Callable[..., torch.optim.Optimizer]


class Gate(nn.Module):
    """A number, a weight of three rows over four ranks, and one that only its columns split."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.tensor([0.5]))
        self.scale = nn.Parameter(torch.tensor(0.9))
        self.three = nn.Parameter(torch.randn(3, WIDTH) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.gate * torch.tanh(x @ self.three.t()) @ self.three


class Gates(nn.Module):
    """Nothing but gates."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Gate() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank)).square().mean()


def _adamw(kind: str, params: Any) -> torch.optim.Optimizer:
    """A group for each parameter, so that groups are smaller than the world."""
    groups = [{"params": [param], "lr": 1e-2 * (number + 1)} for number, param in enumerate(params)]
    sharded = isinstance(groups[0]["params"][0], DTensor)
    if sharded and kind == "overlap":
        return overlap.AdamW(groups, weight_decay=0.1)
    return torch.optim.AdamW(groups, weight_decay=0.1, **({"fused": True} if kind == "fused" else {}))


def _trains(stage: int, kind: str) -> None:
    for small in (0, 16):
        _trains_split(stage, partial(_adamw, kind), small)


def _trains_split(stage: int, build: Build, small: int) -> None:
    """Split by rows where every rank gets one, by columns, or whole."""
    twins = Twins(Gates, _loss, optimizer=build, stage=stage, unit="blocks.*", replicate_max_numel=small)
    for step in range(3):
        twins.backward()
        twins.check_gradients(f"of step {step}", bits=False)
        mine = overlap.clip_grad_norm_(twins.model.parameters(), 0.05)
        theirs = nn.utils.clip_grad_norm_(twins.plain.parameters(), 0.05)
        torch.testing.assert_close(mine, theirs)
        twins.apply()
    twins.check(bits=False)
    saved = twins.model.state_dict()
    assert all(value.full_tensor().shape == twins.plain.state_dict()[name].shape for name, value in saved.items())


@pytest.mark.parametrize("kind", ["overlap", "fused", "plain"])
@pytest.mark.parametrize("stage", STAGES)
def test_parameters_smaller_than_the_world(ranks: Ranks, stage: int, kind: str) -> None:
    ranks(WORLD, _trains, stage, kind)


def _no_rank_without_rows() -> None:
    twins = Twins(Gates, _loss, unit="blocks.*", replicate_max_numel=0)
    for name, param in twins.model.named_parameters():
        assert param.to_local().numel() > 0, name


def test_no_local_shard_is_empty(ranks: Ranks) -> None:
    ranks(WORLD, _no_rank_without_rows)


class Hollow(nn.Module):
    """A weight between parameters of no elements; ``hollow`` says where they are."""

    def __init__(self, hollow: str) -> None:
        super().__init__()
        if "start" in hollow:
            self.start = nn.Parameter(torch.empty(0))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.2)
        if "middle" in hollow:
            self.middle = nn.Parameter(torch.empty(0, WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        if "end" in hollow:
            self.end = nn.Parameter(torch.empty(WIDTH, 0))

    def forward(self, x: Tensor) -> Tensor:
        nothing = sum(param.sum() for name, param in self.named_parameters(recurse=False) if param.numel() == 0)
        return x + torch.tanh(x @ self.weight.t() + self.bias) + nothing


class Hollows(nn.Module):
    """Two such units."""

    def __init__(self, hollow: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Hollow(hollow), Hollow(hollow)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x))


def _ours(params: Any, **options: Any) -> torch.optim.Optimizer:
    params = list(params)
    make = overlap.AdamW if any(isinstance(param, DTensor) for param in params) else torch.optim.AdamW
    return make(params, lr=1e-2, **options)


HOLLOWS = ("start", "middle", "end", "start middle end")


def _empty(stage: int, build: Build) -> None:
    for hollow in HOLLOWS:
        _empty_at(stage, hollow, build)


def _empty_at(stage: int, hollow: str, build: Build) -> None:
    twins = Twins(lambda: Hollows(hollow), _loss, optimizer=build, stage=stage, unit="blocks.*")
    for step in range(3):
        twins.backward()
        twins.check_gradients(f"of step {step}, empty at {hollow}", bits=False)
        overlap.clip_grad_norm_(twins.model.parameters(), 0.05)
        nn.utils.clip_grad_norm_(twins.plain.parameters(), 0.05)
        twins.apply()
    twins.check(bits=False)
    _saves(twins)


def _saves(twins: Twins) -> None:
    """Under the names of the plain model, and back."""
    state = twins.model.state_dict()
    assert list(state) == list(twins.plain.state_dict())
    other = Twins(lambda: twins.plain, _loss, unit="blocks.*")
    other.model.load_state_dict(state)
    assert_same_bits(whole(other.model), whole(twins.model))


@pytest.mark.parametrize("build", [_ours, partial(torch.optim.AdamW, lr=1e-2)], ids=["overlap", "torch"])
@pytest.mark.parametrize("stage", STAGES)
def test_trainable_parameters_of_no_elements(ranks: Ranks, stage: int, build: Build) -> None:
    ranks(2, _empty, stage, build)


class Nothing(nn.Module):
    """A unit without a single parameter, and one whose only parameter has no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Tanh(), Hollow("start"), nn.Identity()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _units_of_nothing(stage: int) -> None:
    twins = Twins(Nothing, _loss, stage=stage, unit="blocks.*")
    for _ in range(3):
        twins.step()
    twins.check()


@pytest.mark.parametrize("stage", STAGES)
def test_units_without_parameters(ranks: Ranks, stage: int) -> None:
    ranks(2, _units_of_nothing, stage)
