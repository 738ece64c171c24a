"""The rounds of one size: transports take turns, call by call, then every value is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from overlap.bench.collective.case import Case
from overlap.bench.collective.clock import stopwatch_for
from overlap.bench.collective.names import DTYPES, REDUCING
from overlap.bench.collective.places import Place
from overlap.bench.collective.results import Figures, Row
from overlap.bench.collective.settings import CollectiveSettings
from overlap.bench.collective.transports import Transport
from overlap.comm.control import ControlChannel
from overlap.comm.volume import Collective


class Bench:
    """Measures with all ranks. Every method is a collective.

    Args:
        settings: what to measure.
        transports: who carries it, by name.
        control: on which ranks tell each other their times.
    """

    def __init__(
        self, settings: CollectiveSettings, transports: Mapping[str, Transport], control: ControlChannel
    ) -> None:
        self._settings, self._transports, self._control = settings, transports, control
        self._rank, self._world = dist.get_rank(), dist.get_world_size()

    def rows(self, op: Collective, datatype: str) -> Iterator[list[Row]]:
        """Root after root and size after size, the rows of all transports."""
        for root in self._settings.roots(op):
            for count, nbytes in self._settings.sizes(op, DTYPES[datatype].itemsize):
                yield self._size(self._case(op, datatype, count, root), datatype, nbytes)

    def _size(self, case: Case, datatype: str, nbytes: int) -> list[Row]:
        out_of_place = self._figures(case, nbytes, in_place=False)
        in_place = self._figures(case, nbytes, in_place=True) if case.can_be_in_place else {}
        return [
            Row(
                collective=case.op,
                transport=name,
                size=nbytes,
                count=case.count,
                type=datatype,
                redop=case.redop if case.op in REDUCING else "none",
                root=case.root,
                out_of_place=out_of_place[name],
                in_place=in_place.get(name),
            )
            for name in self._transports
        ]

    def _case(self, op: Collective, datatype: str, count: int, root: int) -> Case:
        settings = self._settings
        return Case(
            op=op,
            count=count,
            world=self._world,
            rank=self._rank,
            wire=DTYPES[datatype],
            out=DTYPES[settings.out_datatype or datatype],
            layout=settings.layout,
            pieces=settings.pieces,
            redop=settings.redop,
            root=root,
        )

    def _figures(self, case: Case, nbytes: int, *, in_place: bool) -> dict[str, Figures]:
        places = {name: Place(case, in_place, each.device) for name, each in self._transports.items()}
        for place in places.values():
            place.fill(case.values(0))
        seconds = self._rounds(places)
        wrong = {name: self._wrong(place, self._transports[name]) for name, place in places.items()}
        told: list[dict[str, Any]] = self._control.gather_object({"seconds": seconds, "wrong": wrong})
        checked = self._settings.check > 0
        return {
            name: Figures.of(
                case.op,
                nbytes,
                self._world,
                [rank["seconds"][name] for rank in told],
                sum(rank["wrong"][name] for rank in told) if checked else None,
            )
            for name in places
        }

    def _rounds(self, places: Mapping[str, Place]) -> dict[str, list[float]]:
        """Seconds of the timed calls on this rank."""
        calls = {name: place.call(self._transports[name]) for name, place in places.items()}
        watches = {name: stopwatch_for(self._transports[name].device) for name in places}
        for _ in range(self._settings.warmup):
            for call in calls.values():
                call()
        dist.barrier()
        for _ in range(self._settings.iters):
            for name, call in calls.items():
                watches[name].time(call)
        return {name: watch.seconds() for name, watch in watches.items()}

    def _wrong(self, place: Place, transport: Transport) -> int:
        """Wrong values of this rank over the checked calls."""
        wrong = 0
        for repetition in range(1, self._settings.check + 1):
            values = place.case.values(repetition)
            place.fill(values)
            place.call(transport)()
            if transport.device.type == "cuda":
                torch.cuda.synchronize()
            wrong += place.wrong(values)
        return wrong
