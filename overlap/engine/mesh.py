"""Which ranks a model is sharded over."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from overlap.comm.collective import Communicator
from overlap.comm.groups import communicator_for, control_channel
from overlap.config import missing_launcher_variables
from overlap.engine.build import ShardGroup
from overlap.errors import ConfigError, StateError, message

# Two communicators on one group would number their exchanges apart: one per group, gone with it.
_compute: WeakKeyDictionary[ProcessGroup, Communicator] = WeakKeyDictionary()


def shard_group(mesh: DeviceMesh | None, module: nn.Module) -> ShardGroup:
    """Resolve the mesh and open what building needs to talk over it. A collective.

    Args:
        mesh: 1-D; None means all ranks, on CUDA where there is one and the module is not kept on CPU.
        module: decides the device type when there is no mesh.

    Raises:
        StateError: torch.distributed is not initialised and no launcher has set its variables.
        ConfigError: the mesh has more than one dimension, or this rank is not in it.
    """
    if mesh is None:
        mesh = _default_mesh(_device_type(module))
    if mesh.ndim != 1:
        raise ConfigError(
            message("mesh", "have one dimension", f"{mesh.ndim} dimensions", "pass mesh['shard'] or a 1-D mesh")
        )
    if mesh.get_coordinate() is None:
        raise ConfigError(
            message("mesh", "contain this rank", f"rank {dist.get_rank()}", "shard only on ranks of the mesh")
        )
    device = torch.device(mesh.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    return ShardGroup(mesh, device, compute_communicator(mesh), control_channel(mesh.get_group()))


def compute_communicator(mesh: DeviceMesh) -> Communicator:
    """For what runs in the order of compute: initial weights and norms. The same object for the same group."""
    group = mesh.get_group()
    if group not in _compute:
        _compute[group] = communicator_for(group, "compute", mesh.device_type)
    return _compute[group]


def _device_type(module: nn.Module) -> str:
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
