"""Parameters that some ranks use and others do not, with many units behind them: nobody is held up, nothing is lost.

A reduction ends once all ranks have joined it. A rank that kept a bucket for gradients that never come would hold up
the others, and they it: at stage 3 by the gathers they no longer issue. (In the first step, from which the order is
learned, all ranks run the same units.)
"""

import pytest
from support.chain import WIDTH, data
from support.pair import add_gradients
from support.ranks import Ranks
from support.twins import Twins
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

STAGES = (0, 1, 2, 3)
UNITS = 8  # several times as many as buckets have memory for
TIMEOUT_S = 15.0


class Skippable(nn.Module):
    """A chain that may leave out one block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(UNITS))

    def forward(self, x: Tensor, left_out: int | None) -> Tensor:
        for number, block in enumerate(self.blocks):
            if number != left_out:
                x = block(x).tanh()
        return x


class Routed(nn.Module):
    """A block of which every batch takes one way."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, expert: int) -> Tensor:
        return self.experts[expert](self.before(x)).tanh()


class Mixture(nn.Module):
    """Routed blocks one behind another."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Routed() for _ in range(UNITS))

    def forward(self, x: Tensor, expert: int) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x, (expert + number) % 3)
        return x


class Repeated(nn.Module):
    """One block several times, with others between."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(self.shared(x).tanh()).tanh()
        return x


class HeadFirst(nn.Module):
    """Blocks whose gradients come from backwards within the backward; the head is registered before them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.within = True

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = (checkpoint(block, x, use_reentrant=True) if self.within else block(x)).tanh()
        return self.head(x)


def _check_steps(twins: Twins, steps: int = 5) -> None:
    for step in range(steps):
        twins.backward()
        twins.check_gradients(f"of step {step}")
        twins.apply()
    twins.check()


def _one_rank_leaves_out(stage: int, block: int, since: int) -> None:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        return model(data(step, rank), block if rank == 0 and step >= since else None).square().mean()

    _check_steps(Twins(Skippable, loss, stage=stage, unit=nn.Linear, timeout_s=TIMEOUT_S))


@pytest.mark.parametrize("since", [1, 2])
@pytest.mark.parametrize("block", [0, 3, UNITS - 2, UNITS - 1])
@pytest.mark.parametrize("stage", STAGES)
def test_one_rank_leaves_out_a_unit(ranks: Ranks, stage: int, block: int, since: int) -> None:
    ranks(2, _one_rank_leaves_out, stage, block, since)


def _other_experts(stage: int, lanes: str) -> None:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        return model(data(step, rank), (rank + step // 2) % 3).square().mean()

    _check_steps(Twins(Mixture, loss, stage=stage, unit=Routed, timeout_s=TIMEOUT_S, lanes=lanes))


@pytest.mark.parametrize("lanes", ["auto", "inline"])
@pytest.mark.parametrize("stage", STAGES)
def test_every_rank_takes_another_expert_from_the_first_step_on(ranks: Ranks, stage: int, lanes: str) -> None:
    ranks(2, _other_experts, stage, lanes)


def _other_experts_in_copies(stage: int, masters: str) -> None:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        return model(data(step, rank), (rank + step // 2) % 3).square().mean()

    mesh = init_device_mesh("cpu", (2, 2))
    twins = Twins(Mixture, loss, stage=stage, unit=Routed, timeout_s=TIMEOUT_S, mesh=mesh, masters=masters)
    for step in range(4):
        twins.backward()
        twins.check_gradients(f"of step {step}", bits=False)
        twins.apply()


@pytest.mark.parametrize(("stage", "masters"), [(1, "copy"), (2, "copy"), (3, "copy"), (3, "mesh")])
def test_every_rank_takes_another_expert_in_copies_of_the_model(ranks: Ranks, stage: int, masters: str) -> None:
    ranks(4, _other_experts_in_copies, stage, masters)


def _some_micro_batches_alone(stage: int) -> None:
    """Each rank's experts change from one micro-batch to the next; the last one reduces for all."""

    def loss(model: nn.Module, rank: int, step: int, part: int) -> Tensor:
        return model(data(10 * step + part, rank), (rank + part) % 3).square().mean()

    twins = Twins(Mixture, lambda *_: data(), stage=stage, unit=Routed, timeout_s=TIMEOUT_S)
    for step in range(3):
        for part in range(3):
            twins.model.set_requires_gradient_sync(part == 2)
            loss(twins.model, twins.rank, step, part).backward()
        add_gradients(
            twins.plain, twins.world, lambda rank, at=step: [loss(twins.plain, rank, at, n) for n in range(3)]
        )
        twins.check_gradients(f"of step {step}", bits=False)
        twins.apply()


@pytest.mark.parametrize("stage", STAGES)
def test_experts_of_micro_batches_that_are_reduced_together(ranks: Ranks, stage: int) -> None:
    ranks(2, _some_micro_batches_alone, stage)


def _backward_ends_early(stage: int) -> None:
    """Rank 0's loss reaches the last blocks alone: its backward is over while the other's needs all of its buckets."""

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        x = data(step, rank)
        for number, block in enumerate(model.blocks):
            x = block(x).tanh()
            x = x.detach() if rank == 0 and number == UNITS - 3 and step >= 2 else x
        return x.square().mean()

    class Called(Skippable):
        def forward(self, rank: int, step: int) -> Tensor:
            return loss(self, rank, step)

    _check_steps(
        Twins(Called, lambda model, rank, step: model(rank, step), stage=stage, unit=nn.Linear, timeout_s=TIMEOUT_S)
    )


@pytest.mark.parametrize("stage", STAGES)
def test_backward_of_one_rank_ends_early(ranks: Ranks, stage: int) -> None:
    ranks(2, _backward_ends_early, stage)


def _checkpointed_reentrantly(stage: int) -> None:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        return model(data(step, rank).requires_grad_()).square().mean()

    twins = Twins(HeadFirst, loss, stage=stage, unit=nn.Linear, timeout_s=TIMEOUT_S)
    twins.plain.within = False  # autograd.grad does without
    _check_steps(twins)


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_that_autograd_does_not_announce_are_not_lost(ranks: Ranks, stage: int) -> None:
    ranks(2, _checkpointed_reentrantly, stage)


def _block_several_times(stage: int) -> None:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        return model(data(step, rank)).square().mean()

    twins = Twins(Repeated, loss, stage=stage, unit=nn.Linear, timeout_s=TIMEOUT_S)
    for _ in range(4):
        twins.backward()
        twins.check_gradients(bits=False)
        twins.apply()
    assert twins.engine.deviations == 0
    reductions = sum(op.kind == "reduce" for op in twins.engine.plan.ops)
    assert reductions == len(twins.engine.gradients.buckets)


@pytest.mark.parametrize("stage", STAGES)
def test_a_block_called_several_times_is_reduced_once(ranks: Ranks, stage: int) -> None:
    ranks(2, _block_several_times, stage)
