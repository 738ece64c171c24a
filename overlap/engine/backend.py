"""Lanes and communicators by device: the one place that knows which backend serves what."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup

from overlap.comm.collective import Communicator
from overlap.comm.groups import communicator_for
from overlap.config import ShardOptions
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


def open_lanes(device: torch.device, options: ShardOptions, watch: Watch | None) -> Lanes:
    """Create the lanes.

    The gather lane lets the next units' parameters arrive while this unit computes; the reduce lane lets gradients
    leave while earlier layers still compute theirs. They are separate so that neither queues behind the other.
    """
    if device.type == "cuda":
        return _cuda_lanes(options, watch)
    inline = options.lanes == "inline"
    compute = HostComputeLane(watch=watch, timeout_s=options.timeout_s)
    communication: dict[LaneName, Lane] = {
        name: InlineLane(name, watch=watch, timeout_s=options.timeout_s)
        if inline
        else ThreadLane(name, watch=watch, timeout_s=options.timeout_s, prepare=without_autograd)
        for name in (LaneName.GATHER, LaneName.REDUCE)
    }
    return Lanes(compute, communication)


def without_autograd() -> None:
    """Grad mode is per thread and on by default."""
    torch.set_grad_enabled(False)


def _cuda_lanes(options: ShardOptions, watch: Watch | None) -> Lanes:
    clock = CudaClock(torch.cuda)
    compute = CudaComputeLane(cuda=torch.cuda, clock=clock, watch=watch)
    if options.lanes == "inline":
        return Lanes(compute, {LaneName.GATHER: compute, LaneName.REDUCE: compute})
    lanes: dict[LaneName, Lane] = {
        name: CudaLane(name, cuda=torch.cuda, clock=clock, watch=watch) for name in (LaneName.GATHER, LaneName.REDUCE)
    }
    return Lanes(compute, lanes)


def open_communicators(group: ProcessGroup, device: torch.device) -> dict[LaneName, Communicator]:
    """One communicator per lane: a collective queues behind those of its own lane only. A collective itself."""
    return {name: communicator_for(group, name, device.type) for name in (LaneName.GATHER, LaneName.REDUCE)}
