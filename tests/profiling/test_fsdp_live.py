"""FSDP2 recorded here, in programs whose modules say who they are: every operator is given to the module it ran in."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from overlap.profiling.classify import classifier
from overlap.profiling.rank_report import measure_rank
from overlap.profiling.recording import COMPUTE
from overlap.profiling.selection import ReportOptions
from overlap.profiling.sources import read_recordings

SAYS = "this is "


class Part(nn.Module):
    def __init__(self, name: str, *inner: nn.Module) -> None:
        super().__init__()
        self.name, self.inner = name, nn.Sequential(*inner)

    def forward(self, x):
        with record_function(SAYS + self.name):
            return self.inner(x)


class Net(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        names = [f"blocks.{number}" for number in range(3)]
        self.blocks = nn.ModuleList(Part(name, nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for name in names)
        self.norm, self.head = Part("norm", nn.LayerNorm(32)), Part("head", nn.Linear(32, 8))
        self.again = again

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(self.norm(2 * x))


def _record(folder: str, again: bool, grouped: bool) -> None:
    model, mesh = Net(again), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    if grouped:
        fully_shard([model.norm, model.head], mesh=mesh)
    fully_shard(model, mesh=mesh)
    for _ in range(2):  # the first looks for the order of units
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            model(torch.randn(4, 32, requires_grad=True)).square().mean().backward()
    seen.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")


@pytest.mark.slow
@pytest.mark.parametrize(("again", "grouped"), [(False, False), (True, False), (False, True)])
def test_every_operator_is_given_to_the_module_it_ran_in(ranks: Ranks, tmp_path, again, grouped):
    ranks(2, _record, str(tmp_path), again, grouped)
    root = {SAYS + "norm": "norm, head", SAYS + "head": "norm, head"} if grouped else {}
    for rank in read_recordings(tmp_path, classifier()):
        compute = [one for one in rank.activities if one.category == COMPUTE]
        said = [(one, next((name for name in one.ranges[::-1] if name.startswith(SAYS)), None)) for one in compute]
        inside = [(one, name) for one, name in said if name and "FSDP::all_gather" not in " ".join(one.ranges)]
        assert len(inside) >= 3 * (4 if again else 3) + 2
        for one, name in inside:
            assert one.unit in (root.get(name, name), name.removeprefix(SAYS)), one
        units = {row.unit: row.compute_ns for row in measure_rank(rank, ReportOptions()).units}
        assert sum(units.values()) == sum(one.end_ns - one.start_ns for one in compute)
        # Backward has no ranges of ours: a block multiplies for the weights and for the input of both its layers.
        for block in ("blocks.0", "blocks.1", "blocks.2"):
            names = [one.name for one in compute if (one.unit, one.phase) == (block, "backward")]
            assert names.count("aten::mm") == 4
