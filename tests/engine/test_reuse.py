"""Units used several times, nested, recomputed, with several graphs alive: gradients as in one process."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.chain import WIDTH, data
from support.pair import add_gradients
from support.ranks import Ranks
from support.twins import Twins
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

STAGES = (0, 1, 2, 3)
RECOMPUTES = ("none", "non-reentrant", "reentrant")


class Cell(nn.Module):
    """A residual map whose backward needs its input and its output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Holder(nn.Module):
    """A unit around a unit, with parameters before and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.cell, self.out = nn.Linear(WIDTH, WIDTH), Cell(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.sin(self.cell(self.gain(x))))


class Reuser(nn.Module):
    """Runs its units in turn, several times."""

    def __init__(self, make: Callable[[], nn.Module], uses: int = 1, recompute: str = "none") -> None:
        super().__init__()
        self.first, self.cells = nn.Linear(WIDTH, WIDTH), nn.ModuleList([make(), make(), make()])
        self.uses, self.recompute = uses, recompute

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for cell in [*self.cells] * self.uses:
            x = self.run(cell, x)
        return x

    def run(self, cell: nn.Module, x: Tensor) -> Tensor:
        if self.recompute == "none" or not torch.is_grad_enabled():
            return cell(x)
        return checkpoint(cell, x, use_reentrant=self.recompute == "reentrant")


def _loss(model: nn.Module, rank: int, index: int) -> Tensor:
    return model(data(index, rank)).square().mean()


def _twins(stage: int, nested: bool, uses: int, recompute: str, loss: Any = _loss) -> Twins:
    """The plain one does not recompute."""
    unit: Any = "cells.*" if not nested else _Either
    twins = Twins(lambda: Reuser(Holder if nested else Cell, uses, recompute), loss, stage=stage, unit=unit)
    twins.plain.recompute = "none"
    return twins


class _Kind(type(nn.Module)):
    """Selects cells and their holders with one rule."""

    def __instancecheck__(cls, module: object) -> bool:
        return isinstance(module, Cell | Holder)


class _Either(nn.Module, metaclass=_Kind):
    """Stands for both classes."""


def _two_graphs(stage: int, nested: bool, recompute: str) -> None:
    for uses in (1, 2, 3):
        twins = _twins(stage, nested, uses, recompute)
        for order in ((0, 1), (1, 0), (0, 1)):
            losses = [_loss(twins.model, twins.rank, 10 + part) for part in (0, 1)]
            for part in order:
                losses[part].backward()
            add_gradients(
                twins.plain, twins.world, lambda rank, net=twins.plain: (_loss(net, rank, 10 + part) for part in (0, 1))
            )
            twins.check_gradients(f"of {uses} uses, backwards {order}", bits=False)
            twins.apply()


@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("stage", [1, 3])
def test_two_forwards_before_two_backwards(ranks: Ranks, stage: int, nested: bool, recompute: str) -> None:
    ranks(2, _two_graphs, stage, nested, recompute)


def _retained(stage: int, recompute: str) -> None:
    twins = _twins(stage, True, 2, recompute)
    for _ in range(2):
        loss = _loss(twins.model, twins.rank, twins.steps)
        loss.backward(retain_graph=True)
        loss.backward()
        for _ in range(2):
            twins.backward_plain()
        twins.check_gradients("over a retained graph", bits=False)
        twins.apply()


# Reentrant checkpointing frees what it recomputed: torch itself does not run it twice.
@pytest.mark.parametrize("recompute", ["none", "non-reentrant"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_retained_graph_of_repeated_nested_units(ranks: Ranks, stage: int, recompute: str) -> None:
    ranks(2, _retained, stage, recompute)


def _distance(model: nn.Module, rank: int, index: int) -> Tensor:
    """One model on both sides, as in siamese training; beside it a forward without a graph, as in DPO."""
    one, other = data(index, rank), data(index + 50, rank)
    with torch.no_grad():
        fixed = model(other)
    return (model(one) - model(other)).square().mean() + (model(one) * fixed).mean()


def _siamese(stage: int, recompute: str) -> None:
    for nested in (False, True):
        twins = _twins(stage, nested, 1, recompute, _distance)
        for step in range(3):
            twins.backward()
            twins.check_gradients(f"of step {step}", bits=False)
            twins.apply()


@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize("stage", STAGES)
def test_one_model_on_both_sides_of_a_loss(ranks: Ranks, stage: int, recompute: str) -> None:
    ranks(2, _siamese, stage, recompute)


def _weighted(model: nn.Module, rank: int, index: int) -> tuple[Tensor, Tensor]:
    return model(data(index, rank)), data(index + 50, rank)


def _products(model: nn.Module, index: int, rank: int) -> list[Tensor]:
    """Scalars with the same gradient."""
    return [torch.mul(*_weighted(model, rank, index)).sum()]


def _not_scalar(stage: int, recompute: str) -> None:
    twins = _twins(stage, False, 1, recompute)
    for index in range(3):
        out, weight = _weighted(twins.model, twins.rank, index)
        out.backward(weight)
        add_gradients(twins.plain, twins.world, partial(_products, twins.plain, index))
        twins.check_gradients(f"of iteration {index}", bits=False)
        twins.apply()


@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize("stage", STAGES)
def test_backward_from_a_tensor_with_a_gradient_of_its_own(ranks: Ranks, stage: int, recompute: str) -> None:
    ranks(2, _not_scalar, stage, recompute)
