"""A few stacked experts do not split by rows: they are split along another dimension, and train as ever."""

import pytest
import torch
import torch.distributed as dist
from support.ranks import Ranks
from support.training import largest_difference, whole_params
from torch import Tensor, nn
from torch.distributed.tensor import Shard

import overlap

EXPERTS, WIDTH, HIDDEN = 3, 96, 50  # 3 experts over 4 ranks; 50 does not divide by 4
STEPS = 5


class Experts(nn.Module):
    """A batched two-layer map per expert."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * 0.05)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) * 0.05)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(torch.tanh(torch.bmm(x, self.up)), self.down).square().mean()


def _train(contender: int | None, dtype: torch.dtype | None) -> tuple[dict[str, Tensor], set[str]]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(Experts())
    if contender is None:
        model = nn.parallel.DistributedDataParallel(model)
    else:
        overlap.shard(model, stage=contender, unit=Experts, poison=True, param_dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        model(torch.randn(EXPERTS, 4, WIDTH, generator=source)).backward()
        optimizer.step()
        optimizer.zero_grad()
    placements = {str(getattr(param, "placements", ())) for param in model.parameters()}
    return whole_params(model.named_parameters()), placements


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_they_train_as_under_ddp(ranks: Ranks, stage: int) -> None:
    reference, _ = ranks(4, _train, None, None)[0]
    params, placements = ranks(4, _train, stage, None)[0]
    assert largest_difference(params, reference) <= 1e-6
    if stage > 0:
        assert placements == {str((Shard(1),))}


def test_bf16_compute_uses_the_strided_view_too(ranks: Ranks) -> None:
    reference, _ = ranks(4, _train, None, None)[0]
    params, _ = ranks(4, _train, 3, torch.bfloat16)[0]
    assert 0 < largest_difference(params, reference) <= 0.01
