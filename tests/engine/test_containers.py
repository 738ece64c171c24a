"""Tensors in containers, positional or by keyword: found, cast, and trained through; or refused, never forgotten."""

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from support.chain import WIDTH, data
from support.clear_error import clear_error
from support.ranks import Ranks
from support.twins import Twins
from torch import Tensor, nn

import overlap

STAGES = (0, 1, 2, 3)


class Named(NamedTuple):
    x: Tensor
    ids: Tensor


@dataclass
class Data:
    x: Tensor
    ids: Tensor
    note: str = "kept"


@dataclass(frozen=True)
class Frozen:
    inner: Data


class Dict(OrderedDict[str, Any]):
    """A class of its own."""


Wrap = Callable[[Tensor, Tensor], Any]
# How to put two tensors into a container, and how to get them back.
CONTAINERS: dict[str, tuple[Wrap, Callable[[Any], tuple[Tensor, Tensor]]]] = {
    "list": (lambda x, ids: [x, ids], lambda c: (c[0], c[1])),
    "tuple": (lambda x, ids: (x, None, ids), lambda c: (c[0], c[2])),
    "dict": (lambda x, ids: {"x": x, "ids": ids}, lambda c: (c["x"], c["ids"])),
    "namedtuple": (Named, lambda c: (c.x, c.ids)),
    "dataclass": (Data, lambda c: (c.x, c.ids)),
    "frozen dataclass": (lambda x, ids: Frozen(Data(x, ids)), lambda c: (c.inner.x, c.inner.ids)),
    "dict class": (lambda x, ids: Dict(x=x, ids=ids), lambda c: (c["x"], c["ids"])),
    "nested": (
        lambda x, ids: {"a": [Named(x, ids), ({"deep": Data(ids, ids)},)]},
        lambda c: (c["a"][0].x, c["a"][1][0]["deep"].x),
    ),
}


class Speaks(nn.Module):
    """Takes one container by position and one by keyword, gives one; notes the dtypes and types it met."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(WIDTH, WIDTH)
        self.met: list[object] = []

    def forward(self, state: Any, *, extra: Any) -> Any:
        wrap, unwrap = CONTAINERS[self.kind]
        (x, ids), (bias, more) = unwrap(state), unwrap(extra)
        self.met = [type(state), type(extra), x.dtype, bias.dtype, ids.dtype, more.dtype]
        return wrap(torch.tanh(self.linear(x)) + bias[ids], ids)


class Conversation(nn.Module):
    """A chain of such blocks."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.blocks = kind, nn.ModuleList(Speaks(kind) for _ in range(3))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        wrap, unwrap = CONTAINERS[self.kind]
        ids = torch.arange(len(x))
        state = wrap(x, ids)
        for block in self.blocks:
            state = block(state, extra=wrap(bias, ids))
        return unwrap(state)[0]


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank), data(step + 50, rank)).square().mean()


def _trains(stage: int, kind: str) -> None:
    twins = Twins(lambda: Conversation(kind), _loss, stage=stage, unit="blocks.*")
    for step in range(3):
        twins.backward()
        twins.check_gradients(f"of step {step}")
        twins.apply()
    assert twins.engine.deviations == 0


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_units_exchange_containers(ranks: Ranks, kind: str, stage: int) -> None:
    ranks(2, _trains, stage, kind)


def _casts(kind: str) -> None:
    model = Conversation(kind)
    container = type(CONTAINERS[kind][0](data(), data()))
    overlap.shard(model, unit="blocks.*", replicate_max_numel=WIDTH, param_dtype=torch.bfloat16)
    _loss(model, 0, 0).backward()
    for block in model.blocks:
        assert block.met == [container] * 2 + [torch.bfloat16] * 2 + [torch.int64] * 2
    assert all(param.grad is not None for param in model.parameters())


@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_is_in_them_is_cast_and_they_keep_their_class(ranks: Ranks, kind: str) -> None:
    ranks(1, _casts, kind)


class Wrapped:
    """An object that tensors cannot be found in."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Boxes(nn.Module):
    """Linear on what is in a box; gives a box, a tensor, or both, the box with its result and the tensor without."""

    def __init__(self, gives: str, frozen: bool) -> None:
        super().__init__()
        self.gives, self.linear = gives, nn.Linear(WIDTH, WIDTH).requires_grad_(not frozen)

    def forward(self, given: Any) -> Any:
        given = given[1] if isinstance(given, tuple) else given
        x = given.x if isinstance(given, Wrapped) else given
        y = torch.tanh(self.linear(x))
        return {"box": Wrapped(y), "tensor": y, "both": (x * 1.0, Wrapped(y)), "user dict": UserDict(y=y)}[self.gives]


class BoxChain(nn.Module):
    """A trained block, then two that give what they were told to, then a trained one."""

    def __init__(self, gives: str, frozen: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [Boxes("tensor", False), Boxes(gives, frozen), Boxes(gives, frozen), Boxes("tensor", False)]
        )

    def forward(self, x: Tensor) -> Tensor:
        given: Any = Wrapped(x)
        for block in self.blocks:
            given = block(given)
            given = given["y"] if isinstance(given, UserDict) else given
        return given


def _box_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank)).square().mean()


def _right(stage: int, gives: str, frozen: bool) -> None:
    twins = Twins(lambda: BoxChain(gives, frozen), _box_loss, stage=stage, unit="blocks.*")
    for step in range(3):
        twins.backward()
        twins.check_gradients(f"of step {step}")
        twins.apply()


def _right_or_refused(gives: str, frozen: bool) -> None:
    try:
        _right(3, gives, frozen)
    except overlap.StateError:
        with clear_error(overlap.StateError, "outputs of unit 'blocks.", "hold their tensors"):
            _right(3, gives, frozen)


@pytest.mark.parametrize("stage", STAGES)
def test_objects_nobody_can_look_into_may_go_in(ranks: Ranks, stage: int) -> None:
    ranks(2, _right, stage, "tensor", False)


@pytest.mark.parametrize("gives", ["box", "both", "user dict"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_they_may_come_out_where_parameters_stay(ranks: Ranks, stage: int, gives: str) -> None:
    ranks(2, _right, stage, gives, False)


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("gives", ["box", "both", "user dict"])
def test_where_parameters_come_and_go_they_are_right_or_refused(ranks: Ranks, gives: str, frozen: bool) -> None:
    ranks(2, _right_or_refused, gives, frozen)
