"""Full parameters on request: to read, to change, to call functionally; and copies of a model."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.chain import Chain, chain, close, data, sharded_chain, twin_gradients
from support.clear_error import clear_error
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.func import functional_call, grad

import overlap

STAGES = (0, 1, 2, 3)
BF16 = torch.bfloat16


def _loss(net: nn.Module, step: int = 0, rank: int | None = None) -> Tensor:
    return net(data(step, rank)).square().mean()


def _trained(**options: Any) -> tuple[Chain, Chain]:
    model, twin = sharded_chain(**options), chain()
    for net in (model, twin):
        update = torch.optim.SGD(net.parameters(), lr=0.1)
        if net is model:
            _loss(net).backward()
        else:
            twin_gradients(net, lambda net, rank: _loss(net, 0, rank))
        update.step()
        update.zero_grad()
    return model, twin


def _reads_and_writes(stage: int, world_shape: tuple[int, ...]) -> None:
    mesh = init_device_mesh("cpu", world_shape)
    model, twin = _trained(stage=stage, mesh=mesh)
    with overlap.summon_full_params(model):
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert not isinstance(mine, DTensor)
            torch.testing.assert_close(mine, theirs)
        with torch.no_grad():
            torch.testing.assert_close(model(data()), twin(data()))
            for net in (model, twin):
                for param in net.parameters():
                    param.mul_(1.5)
    assert close(model.parameters(), twin.parameters(), of="data")
    _loss(model, 1).backward()
    twin_gradients(twin, lambda net, rank: _loss(net, 1, rank))
    assert close(model.parameters(), twin.parameters())


@pytest.mark.parametrize("shape", [(2,), (2, 2)])
@pytest.mark.parametrize("stage", STAGES)
def test_full_parameters_are_read_and_written_back(ranks: Ranks, stage: int, shape: tuple[int, ...]) -> None:
    ranks(2 * len(shape), _reads_and_writes, stage, shape)


def _leaves_alone() -> None:
    model, twin = _trained()
    with overlap.summon_full_params(model, writeback=False), torch.no_grad():
        for param in model.parameters():
            param.zero_()
    assert close(model.parameters(), twin.parameters(), of="data")
    with overlap.summon_full_params(model.blocks[0], recurse=False, writeback=False):
        assert not isinstance(model.blocks[0].linear.weight, DTensor)
        assert isinstance(model.blocks[1].linear.weight, DTensor)
    rank = dist.get_rank()
    with overlap.summon_full_params(model, writeback=False, rank0_only=True, offload_to_cpu=True):
        assert isinstance(model.blocks[0].linear.weight, DTensor) == (rank == 1)
    assert close(model.parameters(), twin.parameters(), of="data")
    with pytest.raises(KeyError), overlap.summon_full_params(model):
        raise KeyError
    _loss(model).backward()


def test_what_is_not_written_back_is_left_alone(ranks: Ranks) -> None:
    ranks(2, _leaves_alone)


def _in_master_precision() -> None:
    model = sharded_chain(param_dtype=BF16)
    with overlap.summon_full_params(model):
        for mine, theirs in zip(model.parameters(), chain().parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_it_is_the_master_that_is_summoned(ranks: Ranks) -> None:
    ranks(2, _in_master_precision)


def _functional() -> None:
    """torch.func over the full parameters, as for per-sample gradients or a meta step."""
    model, twin = _trained()
    x = data()

    def loss(net: nn.Module, params: dict[str, Tensor]) -> Tensor:
        out = functional_call(net, params, (x,))
        assert isinstance(out, Tensor)
        return out.square().mean()

    with overlap.summon_full_params(model, writeback=False):
        mine = grad(lambda params: loss(model, params))({n: p.detach() for n, p in model.named_parameters()})
    theirs = grad(lambda params: loss(twin, params))({n: p.detach() for n, p in twin.named_parameters()})
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name])


def test_functional_calls_work_inside(ranks: Ranks) -> None:
    ranks(2, _functional)


def _refuses() -> None:
    model, _ = _trained()
    with (
        clear_error(overlap.ConfigError, "writeback", "rank0_only"),
        overlap.summon_full_params(model, rank0_only=True),
    ):
        pass
    with clear_error(overlap.ConfigError, "Linear"), overlap.summon_full_params(nn.Linear(2, 2)):
        pass
    with (
        overlap.summon_full_params(model),
        clear_error(overlap.StateError, "inside summon_full_params"),
        overlap.summon_full_params(model),
    ):
        pass
    with clear_error(overlap.StateError, "blocks.0.linear", "gradient"), overlap.summon_full_params(model):
        _loss(model).backward()
    model.blocks[0].unshard()
    with clear_error(overlap.StateError, "unshard()"), overlap.summon_full_params(model):
        pass
    model.blocks[0].reshard()
    with clear_error(overlap.StateError, "not be copied", "load_state_dict"):
        copy.deepcopy(model)
    _loss(model).backward()


def test_what_would_be_lost_is_refused(ranks: Ranks) -> None:
    ranks(2, _refuses)


def _averages() -> None:
    """An average of the weights: a dictionary of shards, saved and resumed as one; 16 rows over 3 ranks are uneven."""
    model, twin = sharded_chain(), chain()
    mine = {name: param.detach().clone() for name, param in model.named_parameters()}
    theirs = {name: param.detach().clone() for name, param in twin.named_parameters()}
    updates = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, twin)]
    for step in range(4):
        _loss(model, step).backward()
        twin_gradients(twin, lambda net, rank, step=step: _loss(net, step, rank))
        for update in updates:
            update.step()
            update.zero_grad()
        for shadow, net in ((mine, model), (theirs, twin)):
            for name, param in net.named_parameters():
                shadow[name].lerp_(param.detach(), 0.1)
        if step == 1:  # resume from what was kept
            mine = {name: value.clone() for name, value in mine.items()}
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name].full_tensor(), value)
    model.load_state_dict(mine)
    torch.testing.assert_close(model(data()), functional_call(twin, theirs, (data(),)))


@pytest.mark.parametrize("world", [2, 3])
def test_an_average_of_the_weights_is_a_dictionary_of_shards(ranks: Ranks, world: int) -> None:
    ranks(world, _averages)
