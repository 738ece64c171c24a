"""Hooks of parameters run once per backward, on the reduced gradient; penalties on parameters are not lost."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.chain import Chain, chain, close, data, sharded_chain, twin_gradients
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import overlap

STAGES = (0, 1, 2, 3)


def _loss(net: nn.Module, step: int = 0, rank: int | None = None) -> Tensor:
    return net(data(step, rank)).square().mean()


def _whole(grad: Tensor) -> Tensor:
    return grad.full_tensor() if isinstance(grad, DTensor) else grad


def _watch(net: Chain, seen: list[Tensor], order: list[str]) -> list[Any]:
    """Halve the gradient of one matrix and one bias, and note what hooks see."""

    def halve(grad: Tensor) -> Tensor:
        seen.append(_whole(grad).clone())
        order.append("hook")
        return grad / 2

    def note(param: Tensor) -> None:
        assert param.grad is not None
        order.append("accumulated")
        seen.append(_whole(param.grad).clone())

    linear = net.blocks[1].linear
    return [
        *(param.register_hook(halve) for param in (linear.weight, linear.bias)),
        linear.weight.register_post_accumulate_grad_hook(note),
    ]


def _as_one_process(stage: int, before: bool) -> None:
    """Three micro-batches, each reduced: hooks see each one's gradient, not the sum so far."""
    seen: tuple[list[Tensor], list[Tensor]] = ([], [])
    orders: tuple[list[str], list[str]] = ([], [])
    twin = chain()
    if before:
        model = chain()
        handles = _watch(model, seen[0], orders[0])
        overlap.shard(model, unit="blocks.*", stage=stage, replicate_max_numel=16, poison=True)
    else:
        model = sharded_chain(stage=stage)
        handles = _watch(model, seen[0], orders[0])
    _watch(twin, seen[1], orders[1])
    for step in range(3):
        _loss(model, step).backward()
        twin_gradients(twin, lambda net, rank, step=step: _loss(net, step, rank))
        assert close(model.parameters(), twin.parameters()), step
    assert sorted(orders[0]) == sorted(orders[1])
    assert len(seen[0]) == len(seen[1]) == 9
    for mine in seen[0]:  # buckets do not promise an order among parameters
        assert any(mine.shape == theirs.shape and torch.allclose(mine, theirs, atol=1e-6) for theirs in seen[1])
    for handle in handles:
        handle.remove()
    _loss(model, 5).backward()
    assert len(seen[0]) == 9


@pytest.mark.parametrize("before", [False, True], ids=["after sharding", "before sharding"])
@pytest.mark.parametrize("stage", STAGES)
def test_hooks_see_and_change_each_reduced_gradient_once(ranks: Ranks, stage: int, before: bool) -> None:
    ranks(2, _as_one_process, stage, before)


def _penalty(net: nn.Module) -> Tensor:
    squares = [param.square().sum() for param in net.parameters()]
    total = sum(_whole(each) for each in squares)
    assert isinstance(total, Tensor)
    return total


Penalised = Callable[[nn.Module, int, int | None], Tensor]


def _with_penalty(net: nn.Module, step: int, rank: int | None) -> Tensor:
    return _loss(net, step, rank) + 0.1 * _penalty(net)


def _penalty_alone(net: nn.Module, step: int, rank: int | None) -> Tensor:
    return 0.1 * _penalty(net)


def _adds_penalties(stage: int) -> None:
    model, twin = sharded_chain(stage=stage), chain()
    losses: list[Penalised] = [_with_penalty, _loss, _penalty_alone, _with_penalty]
    for step, loss in enumerate(losses):  # accumulating all the while
        model.set_requires_gradient_sync(step != 2)
        loss(model, step, None).backward()
        twin_gradients(twin, lambda net, rank, loss=loss, step=step: loss(net, step, rank))
        assert close(model.parameters(), twin.parameters()), step


@pytest.mark.parametrize("stage", STAGES)
def test_a_penalty_on_sharded_parameters_adds_to_the_models_gradient(ranks: Ranks, stage: int) -> None:
    ranks(2, _adds_penalties, stage)


class _BreaksError(Exception):
    pass


def _survives_failure() -> None:
    """What was shown before a backward that fails is shown after it, some of it with what was added until then."""
    model, twin = sharded_chain(), chain()
    _loss(model).backward()
    before = [param.grad.full_tensor() for param in model.parameters()]
    twin_gradients(twin, lambda net, rank: _loss(net, 0, rank))

    def fail(grad: Tensor) -> None:
        raise _BreaksError

    x = data(1)
    hidden = model.blocks[0](x)
    hidden.register_hook(fail)
    with pytest.raises(_BreaksError):
        model.blocks[1](hidden).sum().backward()
    twin_gradients(twin, lambda net, rank: net.blocks[1](net.blocks[0](data(1, rank)).detach()).sum())
    for param, grad, added in zip(model.parameters(), before, twin.parameters(), strict=True):
        assert torch.equal(param.grad.full_tensor(), grad) or close([param], [added])
    model.zero_grad()
    assert all(param.grad is None for param in model.parameters())


def test_gradients_are_shown_after_a_backward_that_fails(ranks: Ranks) -> None:
    ranks(2, _survives_failure)
