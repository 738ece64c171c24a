"""Parameters that are no fp32 in row-major order: integers, bools, channels-last, transposed; in forward and saved."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.clear_error import clear_error
from support.pair import assert_same_bits
from support.ranks import Ranks
from support.twins import Twins
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import overlap

STAGES = (0, 1, 2, 3)
WIDTH = 8


class Conv(nn.Module):
    """A channels-last convolution; notes the strides that its weight had in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1).to(memory_format=torch.channels_last)
        self.met: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        self.met = self.conv.weight.stride()
        return x + self.conv(x).tanh()


class Transposed(nn.Module):
    """A linear map whose weight is stored column by column."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(WIDTH, WIDTH + 1) * 0.2).t())
        self.met: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        self.met = self.weight.stride()
        return x + F.linear(x.movedim(1, -1), self.weight)[..., :WIDTH].movedim(-1, 1)


class Expanded(nn.Module):
    """A parameter whose elements lie apart in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH, 2, 4)[:, :, ::2])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.mean((1, 2)).view(1, -1, 1, 1)


class Layouts(nn.Module):
    """One of each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Conv(), Transposed(), Expanded(), Conv()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _images(rank: int, step: int) -> Tensor:
    return torch.randn(2, WIDTH, 4, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(_images(rank, step)).square().mean()


def _trains(stage: int, world: int) -> None:
    twins = Twins(Layouts, _loss, stage=stage, unit="blocks.*")
    for _ in range(3):
        twins.backward()
        twins.check_gradients(bits=False)
        twins.apply()
    twins.check(bits=False)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("stage", STAGES)
def test_weights_that_are_not_row_major_train(ranks: Ranks, stage: int, world: int) -> None:
    ranks(world, _trains, stage, world)


def _strides(stage: int) -> None:
    twins = Twins(Layouts, _loss, stage=stage, unit="blocks.*")
    for step in range(2):
        for net in (twins.model, twins.plain):
            _loss(net, twins.rank, step).backward()
        for mine, plain in zip(twins.model.blocks, twins.plain.blocks, strict=True):
            if hasattr(mine, "met"):
                assert mine.met == plain.met, f"{type(plain).__name__} in step {step}"


@pytest.mark.parametrize("stage", STAGES)
def test_forward_sees_weights_in_the_order_they_were_given_in(ranks: Ranks, stage: int) -> None:
    ranks(2, _strides, stage)


def _saves(stage: int, folder: str) -> None:
    """Values come back into a model of any order in memory, sharded or not."""
    twins = Twins(Layouts, _loss, stage=stage, unit="blocks.*")
    twins.step()
    whole = {name: _full(value) for name, value in twins.model.state_dict().items()}
    plain = Layouts()
    plain.load_state_dict(whole)
    assert plain.blocks[0].conv.weight.is_contiguous(memory_format=torch.channels_last)
    dcp.save({"model": twins.model.state_dict()}, checkpoint_id=folder)
    other = Twins(Layouts, _loss, stage=stage, unit="blocks.*")
    dcp.load({"model": other.model.state_dict()}, checkpoint_id=folder)
    assert_same_bits({name: _full(value) for name, value in other.model.state_dict().items()}, whole)
    torch.testing.assert_close(_loss(other.model, 0, 5), _loss(plain, 0, 5))


def _full(value: Tensor) -> Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stage", [1, 3])
def test_checkpoints_hold_values_whatever_the_order(ranks: Ranks, stage: int, tmp_path: Any) -> None:
    ranks(2, _saves, stage, str(tmp_path))


class Coded(nn.Module):
    """Integer, bool and bytes parameters beside a trainable one."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randint(256, (WIDTH, WIDTH), dtype=torch.uint8), requires_grad=False)
        self.mask = nn.Parameter(torch.rand(WIDTH) > 0.5, requires_grad=False)
        self.order = nn.Parameter(torch.randperm(WIDTH), requires_grad=False)
        self.scale = nn.Parameter(torch.rand(WIDTH, 1) * 0.01)

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.codes.to(self.scale.dtype) - 128) * self.scale
        return x + torch.where(self.mask, F.linear(x, weight), x[:, self.order])


class Codes(nn.Module):
    """Two such units."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Coded(), Coded()])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x))


def _codes_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(_images(rank, step)[:, :, 0, 0]).float().square().mean()


Build = Callable[..., torch.optim.Optimizer]


def _ours(params: Any) -> torch.optim.Optimizer:
    params = list(params)
    make = overlap.AdamW if any(isinstance(param, DTensor) for param in params) else torch.optim.AdamW
    return make(params, lr=1e-3)


def _theirs(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3)


def _codes(stage: int, build: Build) -> None:
    twins = Twins(Codes, _codes_loss, optimizer=build, stage=stage, unit="blocks.*", replicate_max_numel=0)
    for _ in range(3):
        twins.step()
    twins.check(bits=False)
    state = twins.model.state_dict()
    assert list(state) == list(twins.plain.state_dict())
    for name, value in twins.plain.state_dict().items():
        if not value.is_floating_point():
            assert torch.equal(_full(state[name]), value), name
            assert state[name].dtype is value.dtype
    other = Twins(Codes, _codes_loss, stage=stage, unit="blocks.*", replicate_max_numel=0)
    with torch.no_grad():
        for param in other.model.parameters():
            if not param.is_floating_point():
                param.zero_()
    other.model.load_state_dict(state)
    assert torch.equal(_codes_loss(other.model, 0, 9), _codes_loss(twins.model, 0, 9))


@pytest.mark.parametrize("build", [_ours, _theirs], ids=["overlap", "torch"])
@pytest.mark.parametrize("stage", STAGES)
def test_integers_and_bools_pass_through_and_are_saved(ranks: Ranks, stage: int, build: Build) -> None:
    ranks(2, _codes, stage, build)


def _codes_in_bf16(stage: int) -> None:
    model = overlap.shard(Codes(), stage=stage, unit="blocks.*", param_dtype=torch.bfloat16, replicate_max_numel=0)
    met = []
    model.blocks[0].register_forward_pre_hook(
        lambda module, args: met.append((module.codes.dtype, module.mask.dtype, module.order.dtype, module.scale.dtype))
    )
    _codes_loss(model, 0, 0).backward()
    assert met == [(torch.uint8, torch.bool, torch.int64, torch.bfloat16)]


@pytest.mark.parametrize("stage", [1, 3])
def test_the_compute_dtype_does_not_touch_them(ranks: Ranks, stage: int) -> None:
    ranks(2, _codes_in_bf16, stage)


def _trained_integers() -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    net[0].register_parameter("phase", nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    with clear_error(overlap.ConfigError, "phase", "float64"):
        overlap.shard(net)


def test_a_dtype_that_cannot_be_trained_is_named(ranks: Ranks) -> None:
    ranks(1, _trained_integers)
