"""Reductions of a backward: buckets leave once their gradients are there, in an order that all ranks share.

They follow the plan's order. When a bucket is complete depends on the rank, and it may leave before its place among
compute, but not after: a reduction ends once all ranks have joined it, and a rank that waits for its end gathers
nothing meanwhile. What lacks gradients that do not come (of an expert without tokens) leaves without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from overlap.errors import OverlapError
from overlap.schedule.issue import Issuer
from overlap.schedule.lanes import DONE, Event
from overlap.schedule.op import Kind, Op
from overlap.schedule.plan import Plan
from overlap.schedule.spec import BucketSpec


class Reductions:
    """The buckets of one pass after another."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._buckets: Sequence[BucketSpec] = ()
        self._packs: dict[int, Op] = {}
        self._places: dict[int, int] = {}  # bucket -> place of its pack in the plan
        self._reductions: dict[int, Op] = {}
        self._replications: dict[int, Op] = {}
        self._order: list[int] = []
        self._waiting: list[int] = []
        self._ready: set[int] = set()
        self._reduces = self._replicates = True
        self._ended: dict[int, Event] = {}  # buffer -> the end of its last reduction
        self.unplanned = False  # some were issued that no plan waits for

    def begin(self, buckets: Sequence[BucketSpec], plan: Plan | None, order: Sequence[int]) -> None:
        """A pass starts; ``order`` is for buckets that the plan does not have."""
        self._buckets = buckets
        ops = plan.ops if plan is not None else ()
        self._packs, self._reductions, self._replications = (
            {op.index: op for op in ops if op.kind is kind} for kind in (Kind.PACK, Kind.REDUCE, Kind.REPLICATE)
        )
        self._places = {op.index: number for number, op in enumerate(ops) if op.kind is Kind.PACK}
        self._order = [*self._packs, *(bucket for bucket in order if bucket not in self._packs)]
        self._waiting = []
        self._ready = set()

    def open(self, *, reduce: bool, replicate: bool) -> None:
        """A backward starts; see ``Executor.open_backward``."""
        self.wait()  # of a backward that failed
        self._reduces, self._replicates = reduce, replicate
        self._waiting = list(self._order)
        self._ready = set()

    def complete(self, bucket: int) -> None:
        """All gradients of a bucket are there."""
        self._ready.add(bucket)

    def take_next(self, *, incomplete: bool = False) -> int | None:
        """The bucket whose turn it is, if its gradients are there (or ``incomplete`` ones may leave); it must then."""
        if self._waiting and (incomplete or self._waiting[0] in self._ready):
            return self._waiting.pop(0)
        return None

    @property
    def next(self) -> int | None:
        """The bucket whose turn it is; None where all have left."""
        return self._waiting[0] if self._waiting else None

    def due_before(self, place: int | None) -> int | None:
        """The bucket whose turn it is, if the plan packs it before one of its places; any for None."""
        if not self._waiting:
            return None
        bucket = self._waiting[0]
        return bucket if place is None or self._places.get(bucket, place) < place else None

    def planned_pack(self, bucket: int) -> Op | None:
        """What the plan packs a bucket with."""
        return self._packs.get(bucket)

    def repeat(self, bucket: int) -> None:
        """Reduce a bucket once more: gradients have reached it after it was packed."""
        self._packs.pop(bucket, None)
        self._places.pop(bucket, None)
        self.reduce(bucket)
        # The plan's end waits for the plan's last reduction, which this one comes after.
        self._issuer.wait(self._ended.get(self._buckets[bucket].buffer, DONE), "reduce")

    def wait(self) -> None:
        """Let compute wait for all that have been issued."""
        for event in self._ended.values():
            self._issuer.wait(event, "reduce")

    def close(self) -> None:
        """A backward has ended, and compute has waited."""
        self._ended.clear()
        self.unplanned = False

    def abandon(self) -> None:
        """A backward has failed: wait for what is on its way, whether it succeeds or not."""
        self._waiting = []
        for event in self._ended.values():
            with suppress(OverlapError):
                self._issuer.wait(event, "reduce")
        self.close()

    def reduce(self, bucket: int) -> None:
        """Pack a bucket and send it on its way."""
        spec = self._buckets[bucket]
        pack, reduction = self._packs.get(bucket), self._reductions.get(bucket)
        if pack is None or reduction is None:
            pack = Op(Kind.PACK, bucket, spec.pack_bytes, (), f"packed:{bucket}")
            reduction = Op(Kind.REDUCE, bucket, spec.wire_bytes, (pack.records,), f"reduced:{bucket}")
            self._issuer.wait(self._ended.get(spec.buffer, DONE), spec.name)
            self.unplanned = True
        self._issuer.issue(pack)
        if self._reduces:
            event = self._issuer.issue(reduction)
            self._ended[spec.buffer] = self._replicate(bucket, reduction, event)

    def _replicate(self, bucket: int, reduction: Op, reduced: Event) -> Event:
        nbytes = self._buckets[bucket].replicate_bytes
        if not nbytes:
            return reduced
        op = self._replications.get(bucket) if reduction is self._reductions.get(bucket) else None
        op = op or Op(Kind.REPLICATE, bucket, nbytes, (reduction.records,), f"replicated:{bucket}")
        if self._replicates:
            return self._issuer.issue(op)
        self._issuer.stand_in(op.records, reduced)  # what waits for the replication waits for all there is
        return reduced
