"""Programs at the corners of a first pass, of errors and of meshes: right, or refused by name."""

import time
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from support.chain import WIDTH, Block, chain, close, data, sharded_chain, twin_gradients
from support.clear_error import clear_error
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import overlap
from overlap.engine.gradients import Gradients

STAGES = (0, 1, 2, 3)


def _loss(net: nn.Module, step: int, rank: int | None = None) -> Tensor:
    return net(data(step, rank)).square().mean()


def _input_first(stage: int) -> None:
    """The first backward leaves no gradients to learn from; later ones are still waited for, and planned."""
    model, twin = sharded_chain(stage=stage), chain()
    x = data().requires_grad_()
    torch.autograd.grad(model(x).sum(), x)
    reduce = Gradients.reduce

    def late(self: Gradients, number: int) -> None:
        time.sleep(0.02)
        reduce(self, number)

    with patch.object(Gradients, "reduce", late):
        for step in range(3):
            model.zero_grad()
            twin.zero_grad()
            _loss(model, step).backward()
            twin_gradients(twin, lambda net, rank, step=step: _loss(net, step, rank))
            assert close(model.parameters(), twin.parameters()), step


@pytest.mark.parametrize("stage", STAGES)
def test_a_first_backward_for_an_input_alone(ranks: Ranks, stage: int) -> None:
    ranks(2, _input_first, stage)


def _orders(stage: int) -> None:
    """Rank 0's weights lie channels last, the others' do not; rank 0's values hold, and so does its order."""
    torch.manual_seed(0)
    net, twin = (nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)) for _ in range(2))
    twin.load_state_dict(net.state_dict())
    if dist.get_rank() == 0:
        net = net.to(memory_format=torch.channels_last)
    model = overlap.shard(net, unit=nn.Conv2d, stage=stage, replicate_max_numel=16)
    x = torch.randn(2, 8, 7, 7, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_ranks_may_hold_their_weights_in_another_memory_order(ranks: Ranks, stage: int) -> None:
    ranks(2, _orders, stage)


def _added_in_between() -> None:
    model = overlap.shard(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), unit=nn.Linear)
    model.append(nn.Linear(WIDTH, 2))
    with clear_error(overlap.StateError, "2.weight", "later one"):
        model(data())
    with torch.no_grad():
        model(data())


def test_a_layer_added_before_the_first_pass_is_refused(ranks: Ranks) -> None:
    ranks(1, _added_in_between)


class _Catches(nn.Module):
    """Goes on without its first block if that raises."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.blocks = nn.ModuleList([_Raises(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.blocks[0](x)
        except ValueError:
            x = x * 2
        return self.blocks[1](x) * self.scale


class _Raises(Block):
    """After it has used its weights."""

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        raise ValueError("no")


def _caught(stage: int) -> None:
    torch.manual_seed(0)
    twin = _Catches()
    torch.manual_seed(0)
    model = overlap.shard(_Catches(), unit=Block, stage=stage, replicate_max_numel=0, poison=True)
    for step in range(3):
        model.zero_grad()
        twin.zero_grad()
        _loss(model, step).backward()
        twin_gradients(twin, lambda net, rank, step=step: _loss(net, step, rank))
        used = [name for name, param in twin.named_parameters() if param.grad is not None]
        assert close([model.get_parameter(name) for name in used], [twin.get_parameter(name) for name in used]), step


@pytest.mark.parametrize("stage", STAGES)
def test_code_around_a_unit_may_catch_its_error(ranks: Ranks, stage: int) -> None:
    ranks(2, _caught, stage)


def _meshes() -> None:
    net = chain()
    for block in net.blocks:
        overlap.fully_shard(block)
    model = overlap.fully_shard(net, mesh=init_device_mesh("cpu", (2, 1)))
    with clear_error(overlap.ConfigError, "mesh", "blocks.0", "one mesh"):
        model(data())


def test_units_on_another_mesh_than_the_root_are_refused(ranks: Ranks) -> None:
    ranks(2, _meshes)
