"""Outputs that are views, and callers that write into them or into what they are views of."""

from collections.abc import Callable
from typing import Any

import pytest
from support.chain import WIDTH, data
from support.pair import Loss
from support.ranks import Ranks
from support.twins import Twins
from torch import Tensor, nn

STAGES = (0, 1, 2, 3)
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "squeezed": lambda y: y.unsqueeze(1).squeeze(1),
    "sliced": lambda y: y[:, :],
    "transposed twice": lambda y: y.t().t(),
    "narrowed": lambda y: y.repeat(1, 2).narrow(1, WIDTH, WIDTH),
    "itself": lambda y: y,
}
EDITS: dict[str, Callable[[Tensor], Any]] = {
    "added to": lambda y: y.add_(1),
    "scaled": lambda y: y.mul_(0.5),
    "cut": lambda y: y.relu_(),
    "partly overwritten": lambda y: y[0].zero_(),
    "edited twice": lambda y: y.add_(1)[1:].mul_(3),
}


class Viewing(nn.Module):
    """A linear map that shows its result as a view and remembers what it is a view of."""

    def __init__(self, view: str) -> None:
        super().__init__()
        self.linear, self.view = nn.Linear(WIDTH, WIDTH), VIEWS[view]
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.linear(x.sin()) + 0.0  # nothing that its backward reads
        return self.view(self.kept)


class Edited(nn.Module):
    """A chain whose caller edits what each block returned."""

    def __init__(self, view: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Viewing(view) for _ in range(4))

    def forward(self, x: Tensor, edit: Callable[[Tensor], Any], base: bool) -> Tensor:
        for block in self.blocks:
            x = block(x)
            edit(block.kept if base else x)
            block.kept = None
        return x


def _edited(edit: str, base: bool) -> Loss:
    """The input wants a gradient on every other step: only then was the fault to be seen elsewhere."""

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        x = data(step, rank).requires_grad_(step % 2 == 0)
        return model(x, EDITS[edit], base).square().mean()

    return loss


def _trains(stage: int, view: str, base: bool) -> None:
    for edit in EDITS:
        twins = Twins(lambda: Edited(view), _edited(edit, base), stage=stage, unit="blocks.*")
        for _ in range(2):
            twins.backward()
            twins.check_gradients(f"when {edit}")
            twins.apply()


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("view", VIEWS)
def test_an_output_edited_in_place_has_the_right_gradients(ranks: Ranks, view: str, stage: int) -> None:
    ranks(2, _trains, stage, view, False)


@pytest.mark.parametrize("view", ["squeezed", "narrowed"])
def test_what_an_output_is_a_view_of_may_be_edited_too(ranks: Ranks, view: str) -> None:
    ranks(2, _trains, 3, view, True)


class Halves(nn.Module):
    """Two views of one tensor; with ``frozen`` weights nothing but its input gets a gradient."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2 * WIDTH).requires_grad_(not frozen)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x.sin()).chunk(2, -1)


class PassesOn(nn.Module):
    """Uses one of its inputs, returns the other as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x.tanh()), y


class Relay(nn.Module):
    """Views that one unit made leave another unit untouched."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Halves(frozen), PassesOn(), PassesOn()])

    def forward(self, x: Tensor) -> Tensor:
        first, halves, *passing = self.blocks
        pair = halves(first(x))
        for block in passing:
            pair = block(*pair)
        return pair[0] * pair[1]


def _relay_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank)).square().mean()


def _relays(stage: int, frozen: bool) -> None:
    twins = Twins(lambda: Relay(frozen), _relay_loss, stage=stage, unit="blocks.*")
    for step in range(3):
        twins.backward()
        twins.check_gradients(f"of step {step}")
        twins.apply()
    assert twins.engine.deviations == 0


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_view_of_another_unit_may_be_passed_on(ranks: Ranks, stage: int, frozen: bool) -> None:
    ranks(2, _relays, stage, frozen)
