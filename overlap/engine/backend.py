"""Lanes and communicators by device: the one place that knows which backend serves what."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from overlap.comm.collective import Communicator
from overlap.comm.groups import communicator_for
from overlap.comm.meshes import replicas_of, shard_dimension, two_level_communicator
from overlap.config import ShardOptions
from overlap.engine.build import ShardGroup
from overlap.schedule.lanes import ComputeLane, Lane, Watch
from overlap.schedule.lanes_cpu import HostComputeLane, InlineLane, ThreadLane
from overlap.schedule.lanes_cuda import CudaClock, CudaComputeLane, CudaLane
from overlap.schedule.op import LaneName


@dataclass(frozen=True, slots=True)
class Lanes:
    """All lanes of an engine."""

    compute: ComputeLane
    communication: dict[LaneName, Lane]

    def close(self) -> None:
        """End lane threads."""
        for lane in (*self.communication.values(), self.compute):
            lane.close()


def lane_names(group: ShardGroup) -> tuple[LaneName, ...]:
    """The communication lanes that a mesh needs.

    The gather lane lets the next units' parameters arrive while this unit computes; the reduce lane lets gradients
    leave while earlier layers still compute theirs. They are separate so that neither queues behind the other. With
    several copies of the model a third lane lets one bucket cross between copies while the next is summed within one.
    """
    both = (LaneName.GATHER, LaneName.REDUCE)
    return (*both, LaneName.REPLICATE) if group.replicas > 1 else both


def open_lanes(group: ShardGroup, options: ShardOptions, watch: Watch | None) -> Lanes:
    """Create the lanes of a device."""
    device, names = group.device, lane_names(group)
    if device.type == "cuda":
        return _cuda_lanes(names, options, watch)
    inline = options.lanes == "inline"
    compute = HostComputeLane(watch=watch, timeout_s=options.timeout_s)
    communication: dict[LaneName, Lane] = {
        name: InlineLane(name, watch=watch, timeout_s=options.timeout_s)
        if inline
        else ThreadLane(name, watch=watch, timeout_s=options.timeout_s, prepare=without_autograd)
        for name in names
    }
    return Lanes(compute, communication)


def without_autograd() -> None:
    """Grad mode is per thread and on by default."""
    torch.set_grad_enabled(False)


def _cuda_lanes(names: tuple[LaneName, ...], options: ShardOptions, watch: Watch | None) -> Lanes:
    clock = CudaClock(torch.cuda)
    compute = CudaComputeLane(cuda=torch.cuda, clock=clock, watch=watch)
    if options.lanes == "inline":
        return Lanes(compute, dict.fromkeys(names, compute))
    return Lanes(compute, {name: CudaLane(name, cuda=torch.cuda, clock=clock, watch=watch) for name in names})


def open_communicators(group: ShardGroup) -> dict[LaneName, Communicator]:
    """One communicator per lane: a collective queues behind those of its own lane only. A collective itself."""
    if group.rows is not None:
        return {name: two_level_communicator(group.rows, name) for name in lane_names(group)}
    replicas = replicas_of(group.mesh)
    return {
        name: communicator_for(
            shard_dimension(group.mesh), name, group.device.type, replicas if name is LaneName.REPLICATE else None
        )
        for name in lane_names(group)
    }
