"""Host work of a step grows with the number of parameters, buckets and units, and not faster; counted, not timed."""

import pytest
import torch
from support.chain import WIDTH, data
from support.counting import python_calls
from support.ranks import Ranks
from torch import Tensor, nn

import overlap

STAGES = (0, 1, 2, 3)


class Many(nn.Module):
    """A unit of many small parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.params = nn.ParameterList(torch.randn(WIDTH) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.stack(list(self.params)).sum(0)


def _in_one_unit(count: int) -> nn.Module:
    return nn.Sequential(Many(count))


def _in_units(count: int) -> nn.Module:
    return nn.Sequential(*(Many(1) for _ in range(count)))


def _calls(shape: str, count: int, stage: int) -> int:
    """Python calls of a planned step: forward, backward and update."""
    build = {"parameters": _in_one_unit, "units": _in_units}[shape]
    # A bucket each, sharded by rows: nothing is merged away.
    options = {"stage": stage, "unit": Many, "bucket_bytes": 1, "replicate_max_numel": 0}
    model = overlap.shard(build(count), **options)
    update = overlap.AdamW(model.parameters(), max_grad_norm=1.0)

    def step() -> None:
        model(data()).square().mean().backward()
        update.step()
        update.zero_grad()

    for _ in range(3):
        step()
    return python_calls(step)


@pytest.mark.parametrize("shape", ["parameters", "units"])
@pytest.mark.parametrize("stage", STAGES)
def test_it_grows_linearly(ranks: Ranks, stage: int, shape: str) -> None:
    few, more, many = (ranks(1, _calls, shape, count, stage)[0] for count in (20, 40, 160))
    each = (more - few) / 20
    assert many - more == pytest.approx(120 * each, rel=0.05)


def test_a_parameter_costs_few_calls(ranks: Ranks) -> None:
    """A budget, so that a change that doubles it is noticed: calls of Python functions per parameter and step."""
    few, many = (ranks(1, _calls, "parameters", count, 3)[0] for count in (20, 120))
    print(f"{(many - few) / 100:.0f} calls per parameter, a bucket each")
    assert (many - few) / 100 < 150
