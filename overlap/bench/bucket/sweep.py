"""Bucket bytes x buckets in flight: each alone, compute alone, and both together, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import cast

import torch
import torch.distributed as dist

from overlap.bench.bucket.pipeline import COMPUTE, Lanes, Pipeline
from overlap.bench.bucket.results import Step, SweepRow
from overlap.bench.bucket.settings import SweepSettings
from overlap.bench.bucket.work import Products, Share
from overlap.bench.collective.names import DTYPES
from overlap.bench.collective.transports import Transport
from overlap.comm.control import ControlChannel
from overlap.comm.volume import Collective, busbw
from overlap.schedule.lanes import Job

TRIALS = 5
"""Steps that say how much compute there should be; the first is not counted."""


class Sweeper:
    """Sweeps with all ranks. Every method is a collective.

    Args:
        settings: what to sweep.
        transport: carries buckets.
        control: on which ranks tell each other their times.
    """

    def __init__(self, settings: SweepSettings, transport: Transport, control: ControlChannel) -> None:
        self._settings, self._transport, self._control = settings, transport, control
        self._op, self._world = cast(Collective, settings.collective), dist.get_world_size()
        self._lanes = Lanes(transport.device)
        self._work = Products(settings.matrix, transport.device)

    def close(self) -> None:
        """End the lane's thread."""
        self._lanes.close()

    def rows(self) -> Iterator[SweepRow]:
        """Size after size, number after number."""
        sizes = self._settings.sizes()
        products = self._products(sizes[-1])
        for nbytes in sizes:
            for in_flight in self._settings.in_flight:
                yield self._row(nbytes, in_flight, products)

    def _products(self, nbytes: int) -> int:
        """Products of a step: as long as its gradients take in buckets of this size, times the ratio."""
        pipeline, nothing = self._pipeline(nbytes, 1), [None] * self._settings.buckets(nbytes)
        wire_s = [self._timed(lambda: pipeline.step(nothing)).wall_s for _ in range(TRIALS)]
        product_s = [self._timed(lambda: self._compute([lambda: self._work.run(1)])).wall_s for _ in range(TRIALS)]
        told = self._control.gather_object((median(wire_s[1:]), median(product_s[1:])))
        wire, product = (fmean(column) for column in zip(*told, strict=True))
        return max(1, round(self._settings.ratio * wire / product))

    def _row(self, nbytes: int, in_flight: int, products: int) -> SweepRow:
        count = self._settings.buckets(nbytes)
        pipeline, shares = self._pipeline(nbytes, in_flight), self._work.shares(count, products)
        kinds: dict[str, Callable[[], None]] = {
            "alone": lambda: pipeline.step([None] * count),
            "compute": lambda: self._compute(shares),
            "both": lambda: pipeline.step(shares),
        }
        rounds = [{kind: self._timed(run) for kind, run in kinds.items()} for _ in range(1 + self._settings.rounds)]
        told: list[list[dict[str, Step]]] = self._control.gather_object(rounds[1:])

        def typical(kind: str, figure: Callable[[Step], float]) -> float:
            """Median over rounds of the mean over ranks."""
            return median(fmean(figure(step[kind]) for step in ranks) for ranks in zip(*told, strict=True))

        alone_s = typical("alone", lambda step: step.wall_s)
        compute_s = typical("compute", lambda step: step.compute_s)
        sent = count * nbytes
        return SweepRow(
            bucket_bytes=nbytes,
            in_flight=in_flight,
            buckets=count,
            call_us=1e6 * typical("alone", lambda step: median(step.call_s)),
            busbw_alone_gbps=busbw(self._op, sent, alone_s, self._world) / 1e9,
            busbw_beside_gbps=busbw(self._op, sent, typical("both", lambda step: step.wire_s), self._world) / 1e9,
            alone_ms=1e3 * alone_s,
            compute_ms=1e3 * compute_s,
            step_ms=1e3 * typical("both", lambda step: step.wall_s),
            exposed_ms=1e3 * typical("both", lambda step: step.exposed_s),
            slowdown=typical("both", lambda step: step.compute_s) / compute_s,
        )

    def _pipeline(self, nbytes: int, in_flight: int) -> Pipeline:
        dtype = DTYPES[self._settings.datatype]
        shape = (self._world, max(1, nbytes // dtype.itemsize // self._world))
        return Pipeline(self._lanes, self._transport, self._op, shape, dtype, in_flight)

    def _compute(self, shares: Sequence[Share]) -> None:
        for number, share in enumerate(shares):
            if share is not None:
                self._lanes.compute.submit(Job(f"computed:{number}", COMPUTE, run=share), ())

    def _timed(self, run: Callable[[], None]) -> Step:
        """Run on all ranks together; the host waits for the device at both ends."""
        dist.barrier()
        self._settle()
        begin = time.perf_counter()
        run()
        self._settle()
        return Step.of(time.perf_counter() - begin, self._lanes.take())

    def _settle(self) -> None:
        if self._transport.device.type == "cuda":
            torch.cuda.synchronize()
