"""Lanes inline: communication holds compute up, and still no rank waits for facts from one that it holds up."""

import pytest
import torch
import torch.distributed as dist
from support.chain import WIDTH, close, data, twin_gradients
from support.ranks import Ranks
from torch import Tensor, nn

import overlap

STAGES = (0, 1, 2, 3)


class Branches(nn.Module):
    """Two branches, and what follows both."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.end = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, taken: tuple[int, ...]) -> Tensor:
        hidden = [self.branches[number](x) for number in taken]
        return self.end(torch.stack(hidden).sum(0).tanh())


def _branches() -> Branches:
    torch.manual_seed(0)
    return Branches()


def _diverge(stage: int) -> None:
    model, twin = _branches(), _branches()
    overlap.shard(model, stage=stage, unit=nn.Linear, lanes="inline", replicate_max_numel=WIDTH, poison=True)

    def loss(net: nn.Module, step: int, rank: int) -> Tensor:
        taken = (0, 1) if step == 0 else (rank,)
        return net(data(step, rank), taken).square().mean()

    for step in range(3):
        model.zero_grad()
        twin.zero_grad()
        loss(model, step, dist.get_rank()).backward()
        twin_gradients(twin, lambda net, rank, step=step: loss(net, step, rank))
        assert close(model.parameters(), twin.parameters()), step


@pytest.mark.parametrize("stage", STAGES)
def test_branches_by_rank_are_right(ranks: Ranks, stage: int) -> None:
    ranks(2, _diverge, stage)
