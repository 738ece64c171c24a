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


class Training:
    """Steps that follow a plan."""

    def __init__(self, shape: str, count: int, stage: int, **more: object) -> None:
        build = {"parameters": _in_one_unit, "units": _in_units}[shape]
        # A bucket each, sharded by rows: nothing is merged away.
        options = {"stage": stage, "unit": Many, "bucket_bytes": 1, "replicate_max_numel": 0, **more}
        self.model = overlap.shard(build(count), **options)
        self.params = list(self.model.parameters())
        self.update = overlap.AdamW(self.params, max_grad_norm=1.0)
        for _ in range(3):
            self.step()

    def step(self) -> None:
        self.backward()
        self.apply()

    def backward(self) -> None:
        self.model(data()).square().mean().backward()

    def apply(self) -> None:
        self.update.step()
        self.update.zero_grad()

    def clip_and_apply(self) -> None:
        overlap.clip_grad_norm_(self.params, 1.0)
        self.apply()


def _calls(shape: str, count: int, stage: int, lanes: str) -> int:
    """Python calls of a planned step: forward, backward and update."""
    return python_calls(Training(shape, count, stage, lanes=lanes).step)


def _calls_with_gradients(shape: str, count: int) -> int:
    """Python calls after backward: clipping by hand, an update that clips, and what forgets the gradients."""
    training = Training(shape, count, 3)
    for _ in range(2):
        training.backward()
        calls = python_calls(training.clip_and_apply)
    return calls


@pytest.mark.parametrize("shape", ["parameters", "units"])
@pytest.mark.parametrize("stage", STAGES)
def test_it_grows_linearly(ranks: Ranks, stage: int, shape: str) -> None:
    # In line: how often a lane's thread is late, and so waited for, is not for this test.
    few, more, many = (ranks(1, _calls, shape, count, stage, "inline")[0] for count in (20, 40, 160))
    each = (more - few) / 20
    assert many - more == pytest.approx(120 * each, rel=0.05)


def test_a_parameter_costs_few_calls(ranks: Ranks) -> None:
    """A budget, so that a change that doubles it is noticed: calls of Python functions per parameter and step."""
    few, many = (ranks(1, _calls, "parameters", count, 3, "auto")[0] for count in (20, 120))
    print(f"{(many - few) / 100:.0f} calls per parameter, a bucket each")
    assert (many - few) / 100 < 80


def test_clipping_and_update_cost_few_calls(ranks: Ranks) -> None:
    """A look at each gradient by either, and a launch for each unit, whatever the number of parameters in it."""
    budgets = {"parameters": 3, "units": 55}
    for shape, budget in budgets.items():
        few, many = (ranks(1, _calls_with_gradients, shape, count)[0] for count in (20, 120))
        print(f"{(many - few) / 100:.1f} calls for each of the {shape}")
        assert (many - few) / 100 < budget
