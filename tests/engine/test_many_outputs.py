"""Units with several outputs: the first gradient that comes announces the unit, whichever it is."""

import pytest
import torch
from support.chain import WIDTH, data
from support.ranks import Ranks
from support.twins import Twins, gradients
from torch import Tensor, nn

STAGES = (0, 1, 2, 3)


class Several(nn.Module):
    """Five outputs of several kinds: computed, computed together, a view, its input, none."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, ...]:
        left, right = self.two(x * y).chunk(2, -1)
        first = torch.tanh(self.one(x))
        return first, left, right.sin(), x, None


class Network(nn.Module):
    """Outputs of one unit go to several others, in another order than they were made in."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Several() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y, total = x, x * 0
        for block in self.blocks:
            first, left, right, same, _ = block(x, y)
            x, y = right + first, left * 0.5
            total = total + same
        return x * y + total


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank)).square().mean()


def _fifty(stage: int) -> None:
    twins = Twins(Network, _loss, stage=stage, unit="blocks.*")
    for iteration in range(50):
        twins.loss(twins.model, twins.rank, 0).backward()
        if iteration == 0:
            twins.backward_plain()
            first = gradients(twins.model)
            twins.check_gradients(bits=False)
        for name, grad in gradients(twins.model).items():
            assert torch.equal(grad, first[name]), f"{name} in iteration {iteration}"
        twins.update.zero_grad()
    assert twins.engine.deviations == 0


@pytest.mark.parametrize("stage", STAGES)
def test_fifty_iterations_give_one_gradient(ranks: Ranks, stage: int) -> None:
    ranks(2, _fifty, stage)


def _any_output(stage: int) -> None:
    """Only one of the outputs has a gradient: each in turn."""
    twins = Twins(Network, _loss, stage=stage, unit="blocks.*")
    twins.step()
    for number in (0, 1, 2, 0):

        def loss(model: nn.Module, rank: int, step: int, number: int = number) -> Tensor:
            first = model.blocks[0](data(step, rank), data(step + 50, rank))
            return model.blocks[1](first[1], first[2])[number].square().mean()

        twins.loss = loss
        twins.backward()
        twins.check_gradients(f"of output {number}", bits=False)
        twins.apply()


@pytest.mark.parametrize("stage", STAGES)
def test_any_output_announces_the_backward_of_its_unit(ranks: Ranks, stage: int) -> None:
    ranks(2, _any_output, stage)


class Threads(nn.Module):
    """Two branches whose backward autograd may run in either order."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(Several() for _ in range(3))

    def forward(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        x = self.stem(x)
        outs = {number: self.branches[number](x, x) for number in order}
        return sum(outs[number][0] * outs[number][2] for number in sorted(order))


def _branches(stage: int) -> None:
    twins = Twins(Threads, _loss, stage=stage, unit="branches.*")
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2), (0, 1, 2)):
        twins.loss = lambda model, rank, step, order=order: model(data(step, rank), order).square().mean()
        twins.backward()
        twins.check_gradients(f"of branches {order}", bits=False)
        twins.apply()


@pytest.mark.parametrize("stage", STAGES)
def test_parallel_branches_in_any_order(ranks: Ranks, stage: int) -> None:
    ranks(2, _branches, stage)
