"""Lanes that no test before has ruined, in processes that live on after a rank has fallen out of step."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from overlap import _compat

SETTLED_S = 60.0


def mesh_of_its_own(timeout_s: float, copies: int) -> DeviceMesh:
    """A mesh of all ranks whose lanes are new, as long as its timeout is: engines share those of one timeout.

    Args:
        timeout_s: of its groups.
        copies: rows of the mesh; several make it ``[replicate, shard]``.
    """
    _settle(f"before {timeout_s}")
    ranks = torch.arange(dist.get_world_size()).view(copies, -1)
    if copies == 1:
        return DeviceMesh.from_group(_group_of_mine(ranks, timeout_s), "cpu")
    groups = [_group_of_mine(ranks.T, timeout_s), _group_of_mine(ranks, timeout_s)]
    return DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=("replicate", "shard"))


def _group_of_mine(rows: torch.Tensor, timeout_s: float) -> dist.ProcessGroup:
    """Make a group of every row; the one that this rank is in."""
    groups = [(row, dist.new_group(row, timeout=timedelta(seconds=timeout_s))) for row in rows.tolist()]
    return next(group for row, group in groups if dist.get_rank() in row)


def _settle(what: str) -> None:
    """A barrier without the group's timeout: ranks start, and fail, at different times on a busy machine."""
    store, deadline = _compat.default_store(), time.monotonic() + SETTLED_S
    store.add(what, 1)
    while store.add(what, 0) < dist.get_world_size():
        assert time.monotonic() < deadline, f"{what}: not all ranks have come"
        time.sleep(0.02)
