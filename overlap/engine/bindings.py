"""What each kind of op does, in terms of units and buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from overlap.comm.collective import Communicator
from overlap.config import ShardOptions
from overlap.engine.gradients import Gradients
from overlap.nvtx import Scope
from overlap.schedule.lanes import Job
from overlap.schedule.op import ENTRY_OF_EXIT, OF_BUCKETS, Kind, Op
from overlap.shard.unit import Unit

_NAN_BYTE = 0xFF  # all ones is a NaN in fp32, bf16 and fp16


class Bindings:
    """Makes the job of an op; the executor keeps it for all later steps."""

    def __init__(
        self, units: Sequence[Unit], gradients: Gradients, gather: Communicator, options: ShardOptions
    ) -> None:
        self._units, self._gradients, self._gather, self._options = units, gradients, gather, options

    def job(self, op: Op) -> Job:
        """The work of one op, with its name in the timeline and in NVTX."""
        if op.kind in (Kind.BEGIN, Kind.END):
            return Job(op.records, op.kind)
        named = self._gradients.buckets if op.kind in OF_BUCKETS else self._units
        name = named[op.index].name
        return Job(op.records, op.kind, name, op.bytes, self._work(op), self._scope(op, name))

    def expects_more(self, bucket: int, *, passed: bool) -> bool:
        """Whether the running backward brings gradients that a bucket lacks; see ``Gradients.expects_more``."""
        return self._gradients.expects_more(bucket, passed=passed)

    def waited_for(self, event: str) -> str:
        """The unit or bucket that an event is about: ``gathered:3#2`` is unit 3's, ``reduced:1`` bucket 1's."""
        kind, _, index = event.partition(":")
        named = self._units if kind == "gathered" else self._gradients.buckets
        return named[int(index.partition("#")[0])].name if index else ""

    def _work(self, op: Op) -> Callable[[], None] | None:
        if op.kind is Kind.GATHER:
            return partial(self._gather.all_gather, self._units[op.index].pieces, "gather")
        if op.kind is Kind.PACK:
            return partial(self._gradients.pack, op.index)
        if op.kind is Kind.REDUCE:
            return partial(self._gradients.reduce, op.index)
        if op.kind is Kind.REPLICATE:
            return partial(self._gradients.replicate, op.index)
        slot = self._units[op.index].slot
        if op.kind in ENTRY_OF_EXIT and op.frees and self._options.poison and slot is not None:
            return partial(slot.buffer.fill_, _NAN_BYTE)  # type: ignore[return-value]
        return None

    def _scope(self, op: Op, name: str) -> AbstractContextManager[Any] | None:
        if not self._options.nvtx:
            return None
        categories = {Kind.GATHER: "gather", Kind.REDUCE: "reduce", Kind.REPLICATE: "replicate"}
        return Scope(categories.get(op.kind, "compute"), name, phase=str(op.kind), bytes=op.bytes)
