"""Parameters that were frozen when they were sharded may be trained later, as in one process."""

from collections.abc import Iterable

import pytest
import torch
import torch.distributed as dist
from support.chain import Chain, chain, close, data, twin_gradients
from support.ranks import RankError, Ranks
from torch import Tensor, nn

import overlap

STAGES = (0, 1, 2, 3)
BF16 = torch.bfloat16


def _frozen(dtype: torch.dtype | None = None) -> Chain:
    """All blocks but the last are frozen, in ``dtype``."""
    net = chain()
    for block in net.blocks[:-1]:
        block.requires_grad_(False)
        if dtype is not None:
            block.to(dtype)
    return net


def _shard(net: Chain, stage: int, **options: object) -> Chain:
    return overlap.shard(net, unit="blocks.*", stage=stage, replicate_max_numel=16, poison=True, **options)


def _loss(net: nn.Module, step: int, rank: int | None = None) -> Tensor:
    return net(data(step, rank)).square().mean()


def _some(net: Chain) -> Iterable[nn.Parameter]:
    """A whole block, one matrix of another; the first block stays frozen."""
    return (*net.blocks[1].parameters(), net.blocks[2].linear.weight)


def _step(model: Chain, twin: Chain, step: int) -> None:
    _loss(model, step).backward()
    twin_gradients(twin, lambda net, rank: _loss(net, step, rank))
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
    used = [theirs.grad is not None for theirs in twin.parameters()]
    mine = [param for param, has in zip(model.parameters(), used, strict=True) if has]
    assert close(mine, [param for param in twin.parameters() if param.grad is not None]), step


def _trains(stage: int) -> None:
    model, twin = _shard(_frozen(), stage), _frozen()
    updates = [torch.optim.AdamW(net.parameters(), lr=1e-2) for net in (model, twin)]
    for step in range(8):
        for net in (model, twin):
            for param in _some(net):
                param.requires_grad_(step in (2, 3, 6, 7))  # and frozen again between
        _step(model, twin, step)
        for update in updates:
            update.step()
            update.zero_grad()
        assert close(model.parameters(), twin.parameters(), of="data")
    assert overlap.engine_of(model).plan is not None


@pytest.mark.parametrize("stage", STAGES)
def test_it_trains_from_then_on_as_in_one_process(ranks: Ranks, stage: int) -> None:
    ranks(2, _trains, stage)


def _accumulates(stage: int) -> None:
    model, twin = _shard(_frozen(), stage), _frozen()
    with model.no_sync():
        _loss(model, 0).backward()
    twin_gradients(twin, lambda net, rank: _loss(net, 0, rank))
    for net in (model, twin):
        for param in _some(net):
            param.requires_grad_()
    with model.no_sync():
        _loss(model, 1).backward()
    twin_gradients(twin, lambda net, rank: _loss(net, 1, rank))
    _step(model, twin, 2)
    _step(model, twin, 3)


@pytest.mark.parametrize("stage", STAGES)
def test_what_has_been_accumulated_is_kept(ranks: Ranks, stage: int) -> None:
    ranks(2, _accumulates, stage)


def _widens() -> None:
    """A frozen bf16 weight moves by less than bf16 can show."""
    model = _shard(_frozen(BF16), 3, param_dtype=BF16)
    weight = model.blocks[0].linear.weight
    assert weight.dtype == BF16
    _loss(model, 0).backward()
    before, same = weight.full_tensor().float(), weight
    weight.requires_grad_()
    model.zero_grad()
    _loss(model, 0).backward()
    assert weight is same is model.blocks[0].linear.weight
    assert weight.dtype == weight.grad.dtype == torch.float32
    assert torch.equal(weight.full_tensor(), before)
    torch.optim.SGD(model.parameters(), lr=1e-4).step()
    moved = weight.full_tensor() - before
    assert 0 < moved.abs().max() < 1e-4
    assert ((before + moved).to(BF16) == before.to(BF16)).float().mean() > 0.5


def test_a_frozen_bf16_weight_gets_an_fp32_master_and_gradient(ranks: Ranks) -> None:
    ranks(2, _widens)


def _alone() -> None:
    model = _shard(_frozen(), 3)
    _loss(model, 0).backward()
    if dist.get_rank() == 0:
        model.blocks[0].requires_grad_()
    _loss(model, 1).backward()


def test_unfreezing_on_one_rank_is_an_error_on_all(ranks: Ranks) -> None:
    with pytest.raises(RankError, match="DesyncError"):
        ranks.fresh(2, _alone, group_timeout_s=3)


def _half_precision(stage: int) -> tuple[Chain, Chain]:
    """Sharded and plain; all in bf16, one block frozen, one step taken."""
    nets = []
    for _ in range(2):
        net = chain().to(BF16)
        net.blocks[1].requires_grad_(False)
        nets.append(net)
    model, twin = _shard(nets[0], stage), nets[1]
    for net in (model, twin):
        net(data(0, 0).to(BF16)).sum().backward()
        net.zero_grad()
    return model, twin


def _thaws_under_a_graph(stage: int) -> None:
    """Wider masters are no other weights: what a graph has saved is still what its forward saw."""
    model, twin = _half_precision(stage)
    for net in (model, twin):
        before = net(data(1, 0).to(BF16)).square().mean()
        net.blocks[1].requires_grad_(True)
        (before + net(data(1, 0).to(BF16)).square().mean()).backward()
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None, name
        assert torch.allclose(mine.grad.full_tensor().float(), theirs.grad.float(), rtol=0.05, atol=1e-3), name


def _thaws_edited(stage: int) -> None:
    model, twin = _half_precision(stage)
    with torch.no_grad():
        model.blocks[1].linear.weight.to_local().mul_(2)
        twin.blocks[1].linear.weight.mul_(2)
    found = []
    for net in (model, twin):
        net.blocks[1].requires_grad_(True)
        found.append(net(data(1, 0).to(BF16)))
    assert torch.equal(*found)


@pytest.mark.parametrize("stage", STAGES)
def test_half_precision_is_unfrozen_between_forward_and_backward(ranks: Ranks, stage: int) -> None:
    ranks(1, _thaws_under_a_graph, stage)


@pytest.mark.parametrize("stage", STAGES)
def test_an_edit_just_before_unfreezing_counts(ranks: Ranks, stage: int) -> None:
    ranks(1, _thaws_edited, stage)
