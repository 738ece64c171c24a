"""Legal programs that make life hard for hooks: right, or refused with a cure."""

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.chain import BLOCKS, WIDTH, Block, chain, close, data, sharded_chain, twin_gradients
from support.clear_error import clear_error
from support.ranks import Ranks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

import overlap

STAGES = (0, 1, 2, 3)


def _follows_twin(model: nn.Module, twin: nn.Module, loss: Callable[[nn.Module, int | None, int], Tensor]) -> None:
    """Gradients of three steps are those of one process."""
    for step in range(3):
        model.zero_grad()
        twin.zero_grad()
        loss(model, None, step).backward()
        twin_gradients(twin, lambda net, rank, step=step: loss(net, rank, step))
        assert close(model.parameters(), twin.parameters()), step


def _segments(stage: int, reentrant: bool) -> None:
    def loss(net: nn.Module, rank: int | None, step: int) -> Tensor:
        x = data(step, rank).requires_grad_()
        return (
            checkpoint_sequential(list(net.blocks), 1 if reentrant else 2, x, use_reentrant=reentrant).square().mean()
        )

    _follows_twin(sharded_chain(stage=stage), chain(), loss)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_checkpointed_segments_of_several_units_are_right(ranks: Ranks, stage: int, reentrant: bool) -> None:
    ranks(2, _segments, stage, reentrant)


def _block_before_model() -> None:
    net = chain()
    for block in net.blocks:
        overlap.fully_shard(block, replicate_max_numel=WIDTH)
    net.blocks[0](data()).sum().backward()
    net.zero_grad()
    model = overlap.fully_shard(net, replicate_max_numel=WIDTH)
    twin = chain()
    model(data()).square().mean().backward()
    twin_gradients(twin, lambda net, rank: net(data(0, rank)).square().mean())
    assert close(model.parameters(), twin.parameters())


def test_a_block_may_run_before_the_model_is_sharded(ranks: Ranks) -> None:
    ranks(2, _block_before_model)


def _penalty(stage: int) -> None:
    model, twin = sharded_chain(stage=stage), chain()

    def loss(net: nn.Module, rank: int | None) -> Tensor:
        x = data(0, rank).requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return slope.square().sum()

    if stage == 3:
        with clear_error(overlap.StateError, "create_graph"):
            loss(model, None)
        return
    loss(model, None).backward()
    twin_gradients(twin, loss)
    assert close(model.parameters(), twin.parameters())


@pytest.mark.parametrize("stage", [2, 3])
def test_double_backward_is_right_or_refused(ranks: Ranks, stage: int) -> None:
    ranks(2, _penalty, stage)


class Slotted:
    """An object without a dictionary of attributes, and a way back to itself."""

    __slots__ = ("me", "x")

    def __init__(self, x: Tensor) -> None:
        self.x, self.me = x, self


class Wrapped:
    """An object of a class of the user's."""

    def __init__(self, x: Tensor) -> None:
        self.inner = {"slotted": [Slotted(x)]}


class Opaque(Block):
    """Takes and gives wrapped tensors."""

    def forward(self, x: Any) -> Any:
        return Wrapped(super().forward(x.inner["slotted"][0].x if isinstance(x, Wrapped) else x))


def _opaque(stage: int) -> None:
    def loss(net: nn.Module, rank: int | None, step: int) -> Tensor:
        return net(data(step, rank)).inner["slotted"][0].x.square().mean()

    _follows_twin(sharded_chain(Opaque, stage=stage), chain(Opaque), loss)


@pytest.mark.parametrize("stage", STAGES)
def test_tensors_are_found_in_any_object(ranks: Ranks, stage: int) -> None:
    ranks(2, _opaque, stage)


class Hiding(Block):
    """What it gives can only be had by calling it; beside it, if wanted, something harmless."""

    beside = False

    def forward(self, x: Any) -> Any:
        x = x() if callable(x) else x
        y = super().forward(x)
        return ((lambda: y), x * 1.0) if self.beside else (lambda: y)


class FrozenHiding(Hiding):
    """Nothing of it would tell that its backward was not announced."""

    beside = True

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


def _hiding() -> None:
    for make in (Hiding, FrozenHiding):
        model = sharded_chain(make)
        with clear_error(overlap.StateError, "blocks.0", "functions"):
            model(data().requires_grad_())


def test_outputs_that_hide_their_tensors_are_refused(ranks: Ranks) -> None:
    ranks(2, _hiding)


class PassesInput(Block):
    """Returns what it was given beside its own result."""

    def forward(self, x: Any) -> Any:
        x = x[0] if isinstance(x, tuple) else x
        return super().forward(x), x


def _passing(stage: int) -> None:
    def loss(net: nn.Module, rank: int | None, step: int) -> Tensor:
        out, last = net(data(step, rank))
        return (out * last).square().mean()

    _follows_twin(sharded_chain(PassesInput, stage=stage), chain(PassesInput), loss)


@pytest.mark.parametrize("stage", STAGES)
def test_a_unit_may_return_its_input_too(ranks: Ranks, stage: int) -> None:
    ranks(2, _passing, stage)


class ModelOutput(collections.OrderedDict):
    """As Hugging Face's: no update(), attributes beside items."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("not allowed")


class GivesModelOutput(Block):
    """Wraps its result in such a dictionary."""

    def forward(self, x: Any) -> Any:
        out = ModelOutput()
        out["last"] = super().forward(x["last"] if isinstance(x, dict) else x)
        return out


def _model_output() -> None:
    model = sharded_chain(GivesModelOutput, param_dtype=torch.bfloat16, output_dtype=torch.float32)
    out = model(data())
    assert type(out) is ModelOutput
    assert out["last"].dtype is torch.float32
    out["last"].sum().backward()
    assert all(param.grad is not None for param in model.parameters())


def test_dictionary_classes_keep_their_class(ranks: Ranks) -> None:
    ranks(2, _model_output)


def _alone() -> None:
    model = sharded_chain(stage=0)
    for step in range(2):
        model(data(step)).square().mean().backward()
    if dist.get_rank() == 0:
        with torch.no_grad():
            for _ in range(3):
                model(data())
    model(data()).square().mean().backward()


def test_at_stage_0_one_rank_may_evaluate_alone(ranks: Ranks) -> None:
    ranks(2, _alone)


def _moved() -> None:
    model = sharded_chain()
    assert model.to("cpu") is model
    assert model.float() is model
    with clear_error(overlap.StateError, "bfloat16", "param_dtype"):
        model.to(torch.bfloat16)


def test_a_cast_after_sharding_is_refused_and_no_change_is_none(ranks: Ranks) -> None:
    ranks(2, _moved)


def _own_wishes() -> None:
    net = chain()
    for number, block in enumerate(net.blocks):
        overlap.fully_shard(block, prefetch=3 if number else 2, replicate_max_numel=WIDTH)
    model = overlap.fully_shard(net, replicate_max_numel=WIDTH)
    with clear_error(overlap.ConfigError, "prefetch", "blocks.1"):
        model(data())


def test_a_units_own_wish_is_refused_where_the_root_decides(ranks: Ranks) -> None:
    ranks(2, _own_wishes)


def _keeps_last() -> None:
    net = chain()
    for number, block in enumerate(net.blocks):
        overlap.fully_shard(block, reshard_after_forward=number < BLOCKS - 2, replicate_max_numel=WIDTH)
    model, twin = overlap.fully_shard(net, replicate_max_numel=WIDTH), chain()
    for _ in range(3):
        model.zero_grad()
        model(data()).square().mean().backward()
    twin_gradients(twin, lambda net, rank: net(data(0, rank)).square().mean())
    assert close(model.parameters(), twin.parameters())
    issued = [event.partition("#")[0] for event in overlap.engine_of(model).executor.issued]
    assert [issued.count(f"gathered:{unit}") for unit in range(1, BLOCKS + 1)] == [1, 1, 1, 1]


def test_reshard_after_forward_is_each_units_own(ranks: Ranks) -> None:
    ranks(2, _keeps_last)


class Fails(Block):
    """Raises in backward when asked to."""

    broken = False

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if Fails.broken and out.requires_grad:
            out.register_hook(_raise)
        return out


def _raise(grad: Tensor) -> None:
    raise ArithmeticError("in backward")


def _failed_backward() -> None:
    model = sharded_chain(Fails)
    before = {name: value.full_tensor().clone() for name, value in model.state_dict().items()}
    Fails.broken = True
    with pytest.raises(ArithmeticError):
        model(data()).sum().backward()
    Fails.broken = False
    after = {name: value.full_tensor() for name, value in model.state_dict().items()}
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_state_dict_after_a_failed_backward_is_whole(ranks: Ranks) -> None:
    ranks(2, _failed_backward)


def _complex() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    net[0].register_parameter("phase", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    with clear_error(overlap.ConfigError, "phase", "complex64"):
        overlap.shard(net)


def test_a_trainable_dtype_that_cannot_be_reduced_is_refused(ranks: Ranks) -> None:
    ranks(1, _complex)
