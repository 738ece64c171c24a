"""Hooks that come and go, modules attached late, wrappers that delegate: as before, or refused by name."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.chain import BLOCKS, WIDTH, Block, Chain, chain, close, data, sharded_chain, twin_gradients
from support.clear_error import clear_error
from support.pair import assert_same_bits, whole
from support.ranks import Ranks
from support.twins import Twins
from torch import Tensor, nn

import overlap

STAGES = (0, 1, 2, 3)


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank)).square().mean()


def _generate(model: nn.Module) -> None:
    """Block by block, some of them again, without a graph."""
    model.eval()
    with torch.no_grad():
        x = data(7)
        for number in (0, 1, 2, 3, 2, 3):
            x = model.blocks[number](x)
        model(x)
    model.train()


def _loss_to_its_input(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank).requires_grad_()).square().mean()


def _hooks_come_and_go(stage: int) -> None:
    twins = Twins(chain, _loss_to_its_input, stage=stage, unit="blocks.*")
    met: list[str] = []
    for _ in range(3):
        handles: list[Any] = []
        for net in (twins.model, *twins.model.blocks):
            handles += [
                net.register_forward_pre_hook(lambda *_: met.append("pre")),
                net.register_forward_hook(lambda *_: met.append("forward")),
                net.register_full_backward_hook(lambda *_: met.append("backward")),
            ]
        twins.step()
        for handle in handles:
            handle.remove()
        _generate(twins.model)
        twins.step()
    twins.check()
    assert {kind: met.count(kind) for kind in met} == dict.fromkeys(("pre", "forward", "backward"), 3 * (BLOCKS + 1))


@pytest.mark.parametrize("stage", STAGES)
def test_hooks_may_be_taken_off_for_generation_and_put_back(ranks: Ranks, stage: int) -> None:
    ranks(2, _hooks_come_and_go, stage)


def _all_hooks_cleared(stage: int) -> None:
    """As programs do that unwrap a model: whatever hooks there are, gone; ours are none of them."""
    twins = Twins(chain, _loss, stage=stage, unit="blocks.*")
    for _ in range(3):
        for module in twins.model.modules():
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
            module._backward_hooks.clear()
        _generate(twins.model)
        twins.step()
    twins.check()


@pytest.mark.parametrize("stage", STAGES)
def test_the_engine_lives_without_hooks_of_modules(ranks: Ranks, stage: int) -> None:
    ranks(2, _all_hooks_cleared, stage)


def _hooks_see_whole_weights(stage: int) -> None:
    """A hook on a block runs while its parameters are there, and may change what goes in and out."""
    model, twin = sharded_chain(stage=stage), chain()
    for net in (model, twin):
        net.blocks[1].register_forward_pre_hook(lambda module, args: (args[0] + module.linear.weight.sum(),))
        net.blocks[2].register_forward_hook(lambda module, args, out: out * module.linear.bias)
    for step in range(2):
        model.zero_grad()
        twin.zero_grad()
        _loss(model, dist.get_rank(), step).backward()
        twin_gradients(twin, lambda net, rank, step=step: _loss(net, rank, step))
        assert close(model.parameters(), twin.parameters()), step


@pytest.mark.parametrize("stage", STAGES)
def test_hooks_use_whole_weights(ranks: Ranks, stage: int) -> None:
    ranks(2, _hooks_see_whole_weights, stage)


class Adapted(nn.Module):
    """A block and a late adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out + self.adapter(out)


def _attach(model: nn.Module) -> None:
    late = Adapted()
    model.blocks[1].late = late
    model.blocks[1].register_forward_hook(late)


def _late_and_untrained(stage: int) -> None:
    """An adapter that is frozen needs nothing of the engine."""
    twins = Twins(chain, _loss, stage=stage, unit="blocks.*")
    twins.step()
    for net in (twins.model, twins.plain):
        _attach(net)
        net.blocks[1].late.requires_grad_(False)
    for _ in range(2):
        twins.step()
    twins.check()


@pytest.mark.parametrize("stage", STAGES)
def test_a_frozen_module_may_be_attached_late(ranks: Ranks, stage: int) -> None:
    ranks(2, _late_and_untrained, stage)


def _late_and_trained(stage: int) -> None:
    """One that is trained: its gradients are those of one process, or an error says that they are not."""
    model, twin = sharded_chain(stage=stage), chain()
    _loss(model, dist.get_rank(), 0).backward()
    model.zero_grad()
    for net in (model, twin):
        _attach(net)
    try:
        _loss(model, dist.get_rank(), 1).backward()
    except overlap.StateError:
        with clear_error(overlap.StateError, "late.adapter"):
            _loss(model, dist.get_rank(), 1).backward()
        return
    twin_gradients(twin, lambda net, rank: _loss(net, rank, 1))
    assert close(model.parameters(), twin.parameters()), "each rank has the gradients of its own batch"


@pytest.mark.parametrize("stage", STAGES)
def test_a_trainable_module_attached_late_is_reduced_or_refused(ranks: Ranks, stage: int) -> None:
    ranks(2, _late_and_trained, stage)


class Delegating(nn.Module):
    """As PEFT's: whatever it does not have, the module inside it has."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


def _wrapped_blocks() -> Chain:
    net = chain()
    net.blocks = nn.ModuleList(Delegating(block) for block in net.blocks)
    return net


def _wrapped(stage: int) -> None:
    for unit in ("blocks.*", "blocks.*.inner"):
        twins = Twins(_wrapped_blocks, _loss, stage=stage, unit=unit)
        outer = Delegating(twins.model)
        for _ in range(2):
            outer(data(twins.steps)).square().mean().backward()
            twins.backward_plain()
            twins.apply()
        twins.check(f"with {unit} as units")
        assert outer.blocks[0].linear.weight is twins.model.blocks[0].inner.linear.weight
        assert outer.blocks[0].linear.weight.shape == (WIDTH, WIDTH)


@pytest.mark.parametrize("stage", STAGES)
def test_wrappers_that_delegate_attributes(ranks: Ranks, stage: int) -> None:
    ranks(2, _wrapped, stage)


class Sliced(nn.Module):
    """A container that calls some of its blocks by slices, as early-exit models do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[2:](self.blocks[:2](x))


def _sliced(stage: int) -> None:
    twins = Twins(Sliced, _loss, stage=stage, unit=Block)
    for _ in range(3):
        twins.step()
    twins.check()
    assert_same_bits(whole(twins.model), whole(twins.plain))


@pytest.mark.parametrize("stage", [0, 3])
def test_slices_of_a_sequential_call_the_same_units(ranks: Ranks, stage: int) -> None:
    ranks(2, _sliced, stage)
