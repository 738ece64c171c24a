"""Which ranks a model is sharded over.

A mesh of one dimension shards over all its ranks. One of two, ``[replicate, shard]``, is hybrid sharding: rows of it
hold a copy of the model each, columns hold the same shard of every copy. With ``masters="mesh"`` all ranks shard, as if
the mesh had one dimension, and rows are only where parameters are gathered.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from overlap.comm.groups import control_channel
from overlap.comm.meshes import communicator_over, compute_communicator, flattened, ranks_of, shard_dimension
from overlap.config import missing_launcher_variables
from overlap.engine.build import ShardGroup
from overlap.errors import ConfigError, StateError, message


def shard_group(mesh: DeviceMesh | None, module: nn.Module, *, over_mesh: bool = False) -> ShardGroup:
    """Resolve the mesh and open what building needs to talk over it. A collective.

    Args:
        mesh: ``[shard]`` or ``[replicate, shard]``; None means all ranks, on CUDA where there is one and the module is
            not kept on CPU.
        module: decides the device type when there is no mesh.
        over_mesh: shard over all ranks of a mesh of two dimensions.

    Raises:
        StateError: torch.distributed is not initialised and no launcher has set its variables.
        ConfigError: the mesh has more than two dimensions, or this rank is not in it.
    """
    if mesh is None:
        mesh = _default_mesh(device_type_of(module))
    _check_mesh(mesh)
    device = torch.device(mesh.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    if over_mesh and mesh.ndim != 2:
        cure = "pass mesh=init_device_mesh(device, (copies, ranks of a copy)), or leave masters out"
        raise ConfigError(message("masters='mesh'", "come with a mesh of two dimensions", f"{mesh.ndim}", cure))
    rows = mesh if over_mesh else None
    mesh = flattened(mesh) if rows is not None else mesh
    return ShardGroup(
        mesh,
        device,
        compute_communicator(mesh),
        communicator_over(mesh, ranks_of(mesh)),
        control_channel(shard_dimension(mesh), ranks_of(mesh)),
        rows,
    )


def _check_mesh(mesh: DeviceMesh) -> None:
    if mesh.ndim > 2:
        cure = "pass mesh['replicate', 'shard'] or a mesh of one dimension"
        raise ConfigError(message("mesh", "have one dimension, or two", f"{mesh.ndim} dimensions", cure))
    if mesh.get_coordinate() is None:
        raise ConfigError(
            message("mesh", "contain this rank", f"rank {dist.get_rank()}", "shard only on ranks of the mesh")
        )
    ranks = mesh.mesh.flatten().tolist()
    if ranks != sorted(ranks):
        # Groups number their ranks in ascending order, meshes by place: shards would lie where nobody looks.
        raise ConfigError(message("mesh", "list its ranks in ascending order", str(ranks), "sort it"))


def device_type_of(module: nn.Module) -> str:
    """Where sharding puts a module: where it is, or on a GPU, if there is one, from the meta device."""
    placed = {param.device.type for param in module.parameters()} - {"meta"}
    if placed:
        return placed.pop()
    return "cuda" if torch.cuda.is_available() else "cpu"


def _default_mesh(device_type: str) -> DeviceMesh:
    if not dist.is_initialized():
        missing = missing_launcher_variables()
        if missing:
            raise StateError(
                message(
                    "torch.distributed",
                    "be initialised or launched",
                    f"no process group, and {', '.join(missing)} not set",
                    "start with torchrun, or call torch.distributed.init_process_group() first",
                )
            )
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    world = dist.group.WORLD
    assert world is not None
    return DeviceMesh.from_group(world, device_type)
