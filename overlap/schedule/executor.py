"""Carries out a plan as the training program passes its positions. Where there is a plan it decides nothing.

    hooks:    reach(FORWARD 3) -> every planned op before it is issued, then compute waits for what the plan says
              ready(bucket)    -> packs and reductions leave in the plan's order, each once its gradients are there
              flush()          -> what is left leaves; finish() -> compute waits for the last reduction

Without a plan (the recorded first pass), or from the position where a pass departs from it, the same ops are made on
the spot: a unit is gathered when compute asks for it. Slower, never wrong; departures are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from overlap.errors import StateError, message
from overlap.schedule.lanes import DONE, ComputeLane, Event, Job, Lane
from overlap.schedule.op import ENTRY_OF_EXIT, EXIT_OF_ENTRY, OF_BUCKETS, Kind, LaneName, Op, Position
from overlap.schedule.plan import Plan
from overlap.schedule.spec import NO_SLOT, StepSpec
from overlap.schedule.trace import ComputeTrace


class Bindings(Protocol):
    """The engine's side: what an op does, and how a unit or bucket is called."""

    def job(self, op: Op) -> Job:
        """The work of one op."""


class Executor:
    """One pass after another over the same units and buckets."""

    def __init__(
        self,
        spec: StepSpec,
        bindings: Bindings,
        compute: ComputeLane,
        lanes: dict[LaneName, Lane],
        trace: ComputeTrace | None = None,
    ) -> None:
        """Connect plans to lanes.

        Args:
            spec: units and buckets that ops refer to.
            bindings: gives the work of each op.
            compute: the caller's lane.
            lanes: the other lanes by name.
            trace: records compute and stalls; None records nothing.
        """
        self.spec, self._bindings, self._compute, self._lanes, self.trace = (
            spec,
            bindings,
            compute,
            lanes,
            trace,
        )
        self.plan: Plan | None = None
        self.record: list[Position] = []
        self.issued: list[str] = []
        self.departures = 0
        self._jobs: dict[Op, Job] = {}
        self._events: dict[str, Event] = {}
        self._latest: Event = DONE  # of the compute lane: all compute so far has finished
        self._released: dict[int, Event] = {}  # slot -> its last reader has finished
        self._holds: dict[int, int] = {}  # slot -> unit whose parameters it has, or is about to have
        self._open: set[tuple[Kind, int]] = set()  # units between an entry and its exit
        self._gathered: dict[int, Event] = {}  # unit -> its last gather, while compute has not waited for it
        self._buffer_reduced: dict[int, Event] = {}  # bucket buffer -> the end of its last reduction
        # The plan in hand: compute and gathers in order with a cursor; reductions in an order of their own.
        self._track: list[Op] = []
        self._numbers: dict[str, int] = {}  # event -> place of its op in the plan
        self._cursor = 0
        self._packs: dict[int, Op] = {}
        self._reductions: dict[int, Op] = {}
        self._replications: dict[int, Op] = {}
        self._order: list[int] = []
        self._to_reduce: list[int] = []
        self._ready: set[int] = set()
        self._reduces = self._replicates = True
        self._skipped = False  # an entry or exit of the plan in this pass

    # -- a pass ------------------------------------------------------------------------------------------------

    def begin(self, plan: Plan | None, reduce_order: Sequence[int], *, stale: bool) -> None:
        """Start a pass.

        Args:
            plan: what to follow; None gathers on demand and records the order.
            reduce_order: bucket order when there is no plan; the same on every rank.
            stale: parameters have changed, so that what resident units hold is old.
        """
        self._reset(plan, reduce_order)
        units = self.spec.units
        self._holds = {s: u for s, u in self._holds.items() if units[u].resident and not stale}
        if self.trace is not None:
            self.trace.begin()
        for unit in self._holds.values():  # a pass that skipped the unit has not waited for its gather
            self._await_gather(unit)
        self._issue(Op(Kind.BEGIN, -1, 0, (), "begun"))

    def reach(self, position: Position) -> None:
        """Compute has come to an entry or exit of a unit."""
        self.record.append(position)
        if self.plan is not None and not self._advance(position):
            self.plan = None
            self.departures += 1
        if self.plan is None:
            self._issue(Op(position.kind, position.unit, 0, (), f"{position.kind}:{position.unit}"))
        if position.kind in EXIT_OF_ENTRY:
            self._assure(position)

    def ready(self, bucket: int) -> None:
        """All gradients of a bucket are there: reduce it, and those behind it in order that waited for it."""
        self._ready.add(bucket)
        while self._to_reduce and self._to_reduce[0] in self._ready:
            self._reduce_next()

    def open_backward(self, *, reduce: bool, replicate: bool = True) -> None:
        """A backward starts.

        Args:
            reduce: False only packs (accumulates); nothing goes over the wire.
            replicate: False keeps what is reduced on this rank's side of a hybrid mesh.
        """
        self._await_reductions()  # of a backward that failed
        self._reduces, self._replicates = reduce, replicate
        self._to_reduce = list(self._order)
        self._ready = set()

    def flush(self) -> None:
        """No more gradients will come: reduce what is left, in order."""
        while self._to_reduce:
            self._reduce_next()

    def repeat(self, bucket: int) -> None:
        """Reduce a bucket once more: gradients have reached it after it was packed."""
        self._packs.pop(bucket, None)
        self.departures += 1
        self._reduce(bucket)
        # The plan's end waits for the plan's last reduction, which this one comes after.
        self._wait(self._buffer_reduced.get(self.spec.buckets[bucket].buffer, DONE), "reduce")

    def finish(self) -> None:
        """Let compute wait for the last reduction."""
        if self.plan is None or not self._advance(Position(Kind.END, -1)):
            # A plan is for one backward; a further one over the same graph goes without.
            self.plan = None
            self._await_reductions()
        self._buffer_reduced.clear()
        if self.trace is not None:
            self.trace.finish()

    def _await_reductions(self) -> None:
        for event in self._buffer_reduced.values():
            self._wait(event, "reduce")

    def relocate(self, spec: StepSpec) -> None:
        """Units have moved to other slots: what is gathered is gone, and jobs must be made anew. Between passes."""
        self.spec = spec
        self._jobs.clear()
        self._holds.clear()
        self._released.clear()
        self._gathered.clear()

    def renew(self, spec: StepSpec) -> None:
        """Units keep other things than before, or there are more buckets; what is gathered stays. Between passes."""
        self.spec = spec

    def fetch(self, unit: int) -> None:
        """Gather a unit between passes; ``arrive`` waits for it."""
        begun = self._issue(Op(Kind.BEGIN, -1, 0, (), "begun"))
        op = Op(Kind.GATHER, unit, self.spec.units[unit].gather_bytes, (), f"gathered:{unit}")
        self._issue(op, extra=(begun, self._released.get(self.spec.units[unit].slot, DONE)))

    def arrive(self, unit: int) -> None:
        """Let compute wait for a unit's gather."""
        self._await_gather(unit)

    # -- following the plan ------------------------------------------------------------------------------------

    def _reset(self, plan: Plan | None, reduce_order: Sequence[int]) -> None:
        self.plan, self.record, self.issued = plan, [], []
        self._events = {}
        self._open = set()
        self._skipped = False
        # Reductions have their own cursor: a bucket leaves when its gradients are there, in an order all ranks share.
        self._track = [op for op in plan.ops[1:] if op.kind not in OF_BUCKETS] if plan else []
        self._numbers = {op.records: number for number, op in enumerate(plan.ops)} if plan else {}
        self._reductions = {op.index: op for op in plan.ops if op.kind is Kind.REDUCE} if plan else {}
        self._replications = {op.index: op for op in plan.ops if op.kind is Kind.REPLICATE} if plan else {}
        self._packs = {op.index: op for op in plan.ops if op.kind is Kind.PACK} if plan else {}
        self._order = [*self._packs, *(b for b in reduce_order if b not in self._packs)]
        self._cursor = 0
        self._to_reduce = []
        self._ready = set()

    def _advance(self, position: Position) -> bool:
        """Issue everything up to the position's op; False if the plan has none ahead."""
        found = self._find(position)
        if found is None or self._would_close_open_unit(found):
            return False
        for op in self._track[self._cursor : found]:
            if op.kind is Kind.GATHER:
                self._issue(op)
            else:  # skipped on this rank; the plan's collectives still take place, in the plan's order
                # A wait for this exit stands for all exits before it: wait for compute as far as it has come.
                self._events[op.records] = self._latest
                self._skipped = True
                self.departures += op.kind in EXIT_OF_ENTRY
        self._cursor = found + 1
        self._issue(self._track[found])
        return True

    def _would_close_open_unit(self, found: int) -> bool:
        """Skipping an exit that has not happened would free a slot in use."""
        skipped = self._track[self._cursor : found]
        return any(op.kind in ENTRY_OF_EXIT and (ENTRY_OF_EXIT[op.kind], op.index) in self._open for op in skipped)

    def _find(self, position: Position) -> int | None:
        for number in range(self._cursor, len(self._track)):
            op = self._track[number]
            if op.kind is position.kind and op.index == position.unit:
                return number
        return None

    def _reduce_next(self) -> None:
        bucket = self._to_reduce.pop(0)
        self.record.append(Position(Kind.PACK, bucket))
        if self.plan is not None and bucket in self._packs:
            self._gather_ahead_of(self._packs[bucket])
        self._reduce(bucket)

    def _gather_ahead_of(self, pack: Op) -> None:
        """Gathers that the plan has between the last position and this pack."""
        while self._cursor < len(self._track):
            op = self._track[self._cursor]
            if op.kind is not Kind.GATHER or self._numbers[op.records] > self._numbers[pack.records]:
                return
            self._issue(op)
            self._cursor += 1

    def _reduce(self, bucket: int) -> None:
        buffer = self.spec.buckets[bucket].buffer
        pack, reduction = self._packs.get(bucket), self._reductions.get(bucket)
        if pack is None or reduction is None:
            spec = self.spec.buckets[bucket]
            pack = Op(Kind.PACK, bucket, spec.pack_bytes, (), f"packed:{bucket}")
            reduction = Op(Kind.REDUCE, bucket, spec.wire_bytes, (pack.records,), f"reduced:{bucket}")
            self._wait(self._buffer_reduced.get(buffer, DONE), spec.name)
        self._issue(pack)
        if self._reduces:
            event = self._issue(reduction)
            self._buffer_reduced[buffer] = self._replicate(bucket, reduction, event)

    def _replicate(self, bucket: int, reduction: Op, reduced: Event) -> Event:
        nbytes = self.spec.buckets[bucket].replicate_bytes
        if not nbytes:
            return reduced
        op = self._replications.get(bucket) if reduction is self._reductions.get(bucket) else None
        op = op or Op(Kind.REPLICATE, bucket, nbytes, (reduction.records,), f"replicated:{bucket}")
        if self._replicates:
            return self._issue(op)
        self._events[op.records] = reduced  # what waits for the replication waits for all there is to wait for
        return reduced

    # -- on demand ---------------------------------------------------------------------------------------------

    def _assure(self, entry: Position) -> None:
        """Whatever the plan did or did not do: the unit's parameters are in its slot, or are fetched now."""
        unit = self.spec.units[entry.unit]
        if unit.slot == NO_SLOT:
            return
        holder = self._holds.get(unit.slot)
        if holder != entry.unit:
            self._refuse_to_overwrite(holder, unit.name)
            self.departures += self.plan is not None
            op = Op(Kind.GATHER, entry.unit, unit.gather_bytes, (), f"gathered:{entry.unit}")
            self._issue(op, extra=(self._events["begun"], self._released.get(unit.slot, DONE)))
        elif self.plan is not None and not self._skipped:
            return  # the plan has written every wait that is needed
        # A plan lets the first entry behind a gather wait for it; this pass may have skipped that one.
        self._await_gather(entry.unit)

    def _await_gather(self, unit: int) -> None:
        if unit in self._gathered:
            self._wait(self._gathered[unit], self.spec.units[unit].name)
            del self._gathered[unit]  # a gather that failed stays, and raises again

    def _is_open(self, unit: int) -> bool:
        return any((kind, unit) in self._open for kind in EXIT_OF_ENTRY)

    def _refuse_to_overwrite(self, holder: int | None, name: str) -> None:
        if holder is not None and self._is_open(holder):
            raise StateError(
                message(
                    f"unit {name!r}",
                    "not run inside a unit that shares its slot and does not contain it",
                    f"a call inside {self.spec.units[holder].name!r}",
                    "shard both as one unit, or make one a submodule of the other",
                )
            )

    # -- issuing -----------------------------------------------------------------------------------------------

    def _issue(self, op: Op, extra: Iterable[Event] = ()) -> Event:
        waits = [*(self._events.get(name, DONE) for name in op.waits), *extra]
        job = self._job(op)
        self.issued.append(op.records)
        if op.lane is LaneName.COMPUTE:
            event = self._on_compute(op, job, waits)
            if op.kind not in EXIT_OF_ENTRY:
                self._latest = event
        else:
            event = self._submit(op, job, waits)
        self._events[op.records] = event
        self._note(op, event)
        return event

    def _submit(self, op: Op, job: Job, waits: Sequence[Event]) -> Event:
        if self.trace is None:
            return self._lanes[op.lane].submit(job, waits)
        start = self.trace.mark()
        event = self._lanes[op.lane].submit(job, waits)
        if event is DONE:  # an inline lane: compute stood still while it ran
            self.trace.stall(job.unit, start)
        return event

    def _on_compute(self, op: Op, job: Job, waits: Iterable[Event]) -> Event:
        for name, event in zip(op.waits, waits, strict=True):
            self._wait(event, self._waited_unit(name))
        if op.kind in EXIT_OF_ENTRY:
            if op.waits:  # for its own gather
                self._gathered.pop(op.index, None)
            self._compute.enter()
            if self.trace is not None:
                self.trace.enter(op.kind, job.unit)
            return DONE
        if self.trace is None:
            return self._compute.submit(job, ())
        if op.kind in ENTRY_OF_EXIT:
            self.trace.leave(op.kind, job.unit)
        self.trace.pause()
        event = self._compute.submit(job, ())
        self.trace.resume()
        return event

    def _note(self, op: Op, event: Event) -> None:
        if op.kind is Kind.GATHER:
            self._holds[self.spec.units[op.index].slot] = op.index
            self._gathered[op.index] = event
        elif op.kind in EXIT_OF_ENTRY:
            self._open.add((op.kind, op.index))
        elif op.kind in ENTRY_OF_EXIT:
            self._open.discard((ENTRY_OF_EXIT[op.kind], op.index))
            self._note_exit(op, event)

    def _note_exit(self, op: Op, event: Event) -> None:
        slot = self.spec.units[op.index].slot
        if not self._is_open(op.index):  # a recomputation's forward ends inside the unit's backward
            self._released[slot] = event
        if op.frees:
            self._holds.pop(slot, None)

    def _wait(self, event: Event, unit: str) -> None:
        if event is DONE:
            return
        start = self.trace.mark() if self.trace is not None else None
        waited = self._compute.wait(event, unit)
        if self.trace is not None and waited:
            self.trace.stall(unit, start)

    def _waited_unit(self, event: str) -> str:
        kind, _, index = event.partition(":")
        named = self.spec.units if kind == "gathered" else self.spec.buckets
        return named[int(index.partition("#")[0])].name if index else ""

    def _job(self, op: Op) -> Job:
        job = self._jobs.get(op)
        if job is None:
            job = self._jobs[op] = self._bindings.job(op)
        return job
