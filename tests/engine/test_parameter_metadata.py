"""What users hang on parameters, and do to them in forward: kept and obeyed, or refused; never lost without a word."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from support.chain import WIDTH, Block, chain, data, sharded_chain, twin_gradients
from support.pair import assert_same_bits
from support.ranks import Ranks
from support.twins import Twins, gradients
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrizations, parametrize

import overlap

STAGES = (0, 1, 2, 3)


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank)).square().mean()


def _attributes(stage: int) -> None:
    net = chain()
    for number, param in enumerate(net.parameters()):
        param.no_decay, param.sequence_parallel, param.tags = number % 2 == 0, True, {"number": number}
    tags = [param.tags for param in net.parameters()]
    model = overlap.shard(net, stage=stage, unit="blocks.*", replicate_max_numel=WIDTH)
    for _ in range(2):
        _loss(model, dist.get_rank(), 0).backward()
        for number, param in enumerate(model.parameters()):
            assert (param.no_decay, param.sequence_parallel) == (number % 2 == 0, True)
            assert param.tags is tags[number]


@pytest.mark.parametrize("stage", STAGES)
def test_attributes_of_parameters_are_kept(ranks: Ranks, stage: int) -> None:
    ranks(2, _attributes, stage)


class _Seen:
    """What a hook of a parameter was called with."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def __call__(self, given: Tensor) -> None:
        grad = given.grad if isinstance(given, nn.Parameter) else given
        assert grad is not None
        self.values.append((grad.full_tensor() if isinstance(grad, DTensor) else grad).detach().clone())


def _on_gradient(param: nn.Parameter, seen: _Seen) -> None:
    param.register_hook(seen)


def _on_accumulated(param: nn.Parameter, seen: _Seen) -> None:
    param.register_post_accumulate_grad_hook(seen)


Register = Callable[[nn.Parameter, _Seen], None]


def _hooked(stage: int, register: Register, before: bool) -> None:
    """A hook on a parameter fires once a backward, with the reduced gradient; or registering or running raises."""
    net, twin = chain(), chain()
    seen = _Seen()
    try:
        if before:
            register(net.blocks[1].linear.weight, seen)
        model = overlap.shard(net, stage=stage, unit="blocks.*", replicate_max_numel=WIDTH)
        if not before:
            register(model.blocks[1].linear.weight, seen)
        for step in range(2):
            _loss(model, dist.get_rank(), step).backward()
            model.zero_grad()
    except overlap.OverlapError:
        return
    assert len(seen.values) == 2, "hooks that never fire are lost without a word"
    for step, value in enumerate(seen.values):
        twin.zero_grad()
        twin_gradients(twin, lambda net, rank, step=step: _loss(net, rank, step))
        torch.testing.assert_close(value, twin.blocks[1].linear.weight.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("before", [True, False], ids=["before sharding", "after sharding"])
@pytest.mark.parametrize("register", [_on_gradient, _on_accumulated])
@pytest.mark.parametrize("stage", [1, 3])
def test_hooks_of_parameters_fire_or_are_refused(ranks: Ranks, stage: int, register: Register, before: bool) -> None:
    ranks(2, _hooked, stage, register, before)


class Decays(Block):
    """Edits its own weight in forward."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.mul_(0.9)
        return super().forward(x)


def _edited_in_forward(stage: int) -> None:
    model, twin = sharded_chain(Decays, stage=stage), chain()
    try:
        for step in range(2):
            model.zero_grad()
            _loss(model, dist.get_rank(), step).backward()
    except overlap.OverlapError:
        return
    for _ in range(2):
        for block in twin.blocks:
            block.linear.weight.data.mul_(0.9)  # per forward, not per rank
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.full_tensor().detach(), theirs.detach())


@pytest.mark.parametrize("stage", [1, 3])
def test_weights_edited_in_forward_keep_the_edit_or_are_refused(ranks: Ranks, stage: int) -> None:
    ranks(2, _edited_in_forward, stage)


def _weight_norm(module: nn.Linear) -> None:
    parametrizations.weight_norm(module)


def _orthogonal(module: nn.Linear) -> None:
    parametrizations.orthogonal(module)


class Symmetric(nn.Module):
    """A parametrisation without state."""

    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).t()


def _symmetric(module: nn.Linear) -> None:
    parametrize.register_parametrization(module, "weight", Symmetric())


def _parametrized(stage: int, change: Callable[[nn.Linear], None]) -> None:
    def build() -> nn.Module:
        net = chain()
        for block in net.blocks:
            change(block.linear)
        return net

    try:
        twins = Twins(build, _loss, stage=stage, unit="blocks.*")
        for _ in range(3):
            twins.backward()
            twins.check_gradients(bits=False)
            twins.apply()
    except overlap.OverlapError:
        return
    twins.check(bits=False)


@pytest.mark.parametrize("change", [_weight_norm, _orthogonal, _symmetric])
@pytest.mark.parametrize("stage", STAGES)
def test_parametrized_weights_train_or_are_refused(
    ranks: Ranks, stage: int, change: Callable[[nn.Linear], None]
) -> None:
    ranks(2, _parametrized, stage, change)


def _late_parametrization(stage: int) -> None:
    """Registered after sharding: the weight that sharding made is gone from where it was."""
    model = sharded_chain(stage=stage)
    _loss(model, 0, 0).backward()
    model.zero_grad()
    with pytest.raises((overlap.OverlapError, RuntimeError)):
        _parametrized_late(model)


def _parametrized_late(model: nn.Module) -> None:
    parametrizations.weight_norm(model.blocks[1].linear)
    _loss(model, 0, 0)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_parametrization_after_sharding_is_refused(ranks: Ranks, stage: int) -> None:
    ranks(1, _late_parametrization, stage)


def _spectral(stage: int) -> None:
    """Spectral norm keeps buffers that its forward changes: each rank's own, equal because weights are."""

    def build() -> nn.Module:
        net = chain()
        for block in net.blocks:
            parametrizations.spectral_norm(block.linear)
        return net

    twins = Twins(build, _loss, stage=stage, unit="blocks.*")
    _loss(twins.model, twins.rank, 0).backward()
    assert gradients(twins.model).keys() == {name for name, _ in twins.plain.named_parameters()}
    vectors = {name: buffer for name, buffer in twins.model.named_buffers() if name.endswith("_u")}
    assert vectors
    for name, mine in vectors.items():
        rank_0 = mine.clone()
        dist.broadcast(rank_0, 0)
        assert_same_bits({name: mine}, {name: rank_0})


@pytest.mark.parametrize("stage", [1, 3])
def test_spectral_norm_keeps_its_buffers_alike_on_all_ranks(ranks: Ranks, stage: int) -> None:
    ranks(2, _spectral, stage)
