"""Buckets leave on a lane while compute makes the next ones: the engine's pattern, on the engine's lanes.

compute   C P C P C . P C . P | . .      C compute, P a bucket is packed, . waits for a bucket to be free again
reduce        R   R     R     R          (here there are two), or, at the end, for the last ones to arrive
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from overlap.bench.collective.transports import Transport
from overlap.comm.volume import Collective
from overlap.profiling.intervals import Interval
from overlap.schedule.lanes import ComputeLane, Event, Job, Lane
from overlap.schedule.lanes_cpu import HostComputeLane, ThreadLane
from overlap.schedule.lanes_cuda import CudaClock, CudaComputeLane, CudaLane

COMPUTE, PACK, REDUCE = "compute", "pack", "reduce"


class Spans:
    """A ``Watch``: what ran, by kind, as marks of the lanes' clock."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, Any, Any]] = []

    def span(self, lane: str, job: Job, start: Any, end: Any) -> None:
        """See `overlap.schedule.lanes.Watch`."""
        self._marks.append((job.kind, start, end))

    def take(self, nanoseconds: Callable[[Any], int]) -> dict[str, list[Interval]]:
        """Intervals by kind since the last take."""
        taken, self._marks = self._marks, []
        found: dict[str, list[Interval]] = {COMPUTE: [], PACK: [], REDUCE: []}
        for kind, start, end in taken:
            found[kind].append((nanoseconds(start), nanoseconds(end)))
        return found


class Lanes:
    """Compute, and one lane that buckets leave on.

    Args:
        device: of both.
        cuda: ``torch.cuda``, or what stands in for it.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.spans = Spans()
        self.compute: ComputeLane
        self.reduce: Lane
        if device.type == "cuda":
            clock = CudaClock(cuda)
            self.compute = CudaComputeLane(cuda=cuda, clock=clock, watch=self.spans)
            self.reduce = CudaLane(REDUCE, cuda=cuda, clock=clock, watch=self.spans)
        else:
            self.compute = HostComputeLane(watch=self.spans)
            self.reduce = ThreadLane(REDUCE, watch=self.spans)

    def close(self) -> None:
        """End the lane's thread."""
        self.reduce.close()

    def take(self) -> dict[str, list[Interval]]:
        """What ran since the last take."""
        return self.spans.take(self.compute.clock.nanoseconds)


class Pipeline:
    """The gradients of a step in buckets of one size.

    Args:
        lanes: what it runs on.
        transport: carries a bucket.
        op: that it leaves by.
        shape: [world, S] of a bucket.
        dtype: of its elements.
        in_flight: how many buckets there are.
    """

    def __init__(
        self,
        lanes: Lanes,
        transport: Transport,
        op: Collective,
        shape: tuple[int, int],
        dtype: torch.dtype,
        in_flight: int,
    ) -> None:
        self._lanes, self._transport, self._op = lanes, transport, op
        device = transport.device
        self._gradient = torch.ones(shape, dtype=dtype, device=device)
        self._buckets = [torch.ones(shape, dtype=dtype, device=device) for _ in range(in_flight)]
        self._shards = [torch.ones(shape[1], dtype=dtype, device=device) for _ in range(in_flight)]

    def step(self, shares: Sequence[Callable[[], None] | None]) -> None:
        """Run as many buckets as there are shares of compute; when this returns, compute has waited for the last.

        Args:
            shares: what compute does before each bucket is packed.
        """
        busy: list[Event | None] = [None] * len(self._buckets)
        for number, share in enumerate(shares):
            slot = number % len(busy)
            if share is not None:
                self._lanes.compute.submit(Job(f"computed:{number}", COMPUTE, run=share), ())
            busy[slot] = self._send(number, slot, busy[slot])
        for event in filter(None, busy):
            self._lanes.compute.wait(event, "the last buckets")

    def _send(self, number: int, slot: int, before: Event | None) -> Event:
        """Pack a bucket once it is free, and let it leave."""
        bucket, name = self._buckets[slot], f"bucket {number}"
        if before is not None:
            self._lanes.compute.wait(before, name)
        pack = Job(f"packed:{number}", PACK, name, run=lambda: _copy(bucket, self._gradient))
        packed = self._lanes.compute.submit(pack, ())
        leave = Job(f"reduced:{number}", REDUCE, name, bucket.nbytes, run=lambda: self._reduce(slot))
        return self._lanes.reduce.submit(leave, (packed,))

    def _reduce(self, slot: int) -> None:
        if self._op == "all_reduce":
            self._transport.all_reduce(self._buckets[slot].view(-1))
        else:
            self._transport.reduce_scatter(self._buckets[slot], self._shards[slot])


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
