"""Groups and communicators of a device mesh: its last dimension shards, one before it holds copies."""

from __future__ import annotations

from datetime import timedelta
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from overlap import _compat
from overlap.comm.collective import Communicator
from overlap.comm.groups import communicator_for, lane_group
from overlap.comm.two_level import TwoLevelCommunicator
from overlap.comm.volume import WireCounter

# Two communicators on one group would number their exchanges apart: one per group, gone with it.
_Key = tuple[str, tuple[int, ...], timedelta | None]
_compute: WeakKeyDictionary[ProcessGroup, dict[_Key, Communicator]] = WeakKeyDictionary()


def shard_dimension(mesh: DeviceMesh) -> ProcessGroup:
    """The group that shares one copy of the model with this rank."""
    return mesh.get_group(mesh.ndim - 1)


def replicas_of(mesh: DeviceMesh) -> tuple[int, ...]:
    """Global ranks that hold the same shard as this one, itself among them."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    return tuple(mesh.mesh[:, coordinate[1]].tolist()) if mesh.ndim == 2 else (dist.get_rank(),)


def ranks_of(mesh: DeviceMesh) -> tuple[int, ...]:
    """Global ranks of the whole mesh, row by row."""
    return tuple(mesh.mesh.flatten().tolist())


def flattened(mesh: DeviceMesh) -> DeviceMesh:
    """A mesh of one dimension over all ranks of another. A collective over them."""
    if mesh.ndim == 1:
        return mesh
    group = lane_group(shard_dimension(mesh), "mesh", ranks=ranks_of(mesh))
    return DeviceMesh.from_group(group, mesh.device_type)


def two_level_communicator(mesh: DeviceMesh, lane: str) -> TwoLevelCommunicator:
    """For ``lane``, over all ranks of a mesh ``[replicate, shard]``. A collective over them."""
    counter = WireCounter(measured=mesh.device_type == "cpu")
    row, column, everyone = (
        communicator_for(shard_dimension(mesh), lane, mesh.device_type, ranks, counter)
        for ranks in (None, replicas_of(mesh), ranks_of(mesh))
    )
    return TwoLevelCommunicator(row, column, everyone)


def compute_communicator(mesh: DeviceMesh) -> Communicator:
    """For what runs in the order of compute, over the ranks that share one copy. One object per set of ranks."""
    return communicator_over(mesh, tuple(dist.get_process_group_ranks(shard_dimension(mesh))))


def communicator_over(mesh: DeviceMesh, ranks: tuple[int, ...]) -> Communicator:
    """As ``compute_communicator``, over any ranks of the mesh."""
    world = dist.group.WORLD
    assert world is not None
    base = shard_dimension(mesh)
    made, key = _compute.setdefault(world, {}), (mesh.device_type, ranks, _compat.group_timeout(base))
    if key not in made:
        made[key] = communicator_for(base, "compute", mesh.device_type, ranks)
    return made[key]
