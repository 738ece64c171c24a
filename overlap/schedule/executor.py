"""Carries out a plan as the training program passes its positions. Where there is a plan it decides nothing.

    hooks:    reach(FORWARD 3) -> every planned op before it is issued, then compute waits for what the plan says
              ready(bucket)    -> packs and reductions leave in the plan's order, each once its gradients are there
              flush()          -> what is left leaves; finish() -> compute waits for the last reduction

Without a plan (the recorded first pass), or from the position where a pass departs from it, the same ops are made on
the spot: a unit is gathered when compute asks for it. Slower, never wrong; departures are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress

from overlap.errors import OverlapError, StateError, message
from overlap.schedule.issue import Bindings, Issuer
from overlap.schedule.lanes import DONE, ComputeLane, Event, Lane
from overlap.schedule.op import ENTRY_OF_EXIT, EXIT_OF_ENTRY, OF_BUCKETS, Kind, LaneName, Op, Position
from overlap.schedule.plan import Plan
from overlap.schedule.ranges import ComputeRanges
from overlap.schedule.reductions import Reductions
from overlap.schedule.spec import NO_SLOT, StepSpec
from overlap.schedule.trace import ComputeTrace


class Executor:
    """One pass after another over the same units and buckets."""

    def __init__(
        self,
        spec: StepSpec,
        bindings: Bindings,
        compute: ComputeLane,
        lanes: dict[LaneName, Lane],
        trace: ComputeTrace | None = None,
        ranges: ComputeRanges | None = None,
    ) -> None:
        """Connect plans to lanes.

        Args:
            spec: units and buckets that ops refer to.
            bindings: gives the work of each op.
            compute: the caller's lane.
            lanes: the other lanes by name.
            trace: records compute and stalls; None records nothing.
            ranges: names module code for a profiler; None names nothing.
        """
        self._bindings = bindings
        self._issuer = Issuer(bindings, compute, lanes, trace, ranges)
        self._reductions = Reductions(self._issuer)
        self.renew(spec)
        self.plan: Plan | None = None
        self.record: list[Position] = []
        self.departures = 0
        self._released: dict[int, Event] = {}  # slot -> its last reader has finished
        self._holds: dict[int, int] = {}  # slot -> unit whose parameters it has, or is about to have
        self._open: set[tuple[Kind, int]] = set()  # units between an entry and its exit
        self._gathered: dict[int, Event] = {}  # unit -> its last gather, while compute has not waited for it
        # Compute and gathers of the plan in hand, in order with a cursor.
        self._track: list[Op] = []
        self._numbers: dict[str, int] = {}  # event -> place of its op in the plan
        self._cursor = 0
        self._skipped = False  # an entry or exit of the plan in this pass
        self._abandoned = False

    @property
    def issued(self) -> list[str]:
        """Events of the ops that this pass has issued."""
        return self._issuer.issued

    @property
    def trace(self) -> ComputeTrace | None:
        """Records compute and stalls."""
        return self._issuer.trace

    # -- a pass ------------------------------------------------------------------------------------------------

    def begin(self, plan: Plan | None, reduce_order: Sequence[int], *, stale: bool) -> None:
        """Start a pass.

        Args:
            plan: what to follow; None gathers on demand and records the order.
            reduce_order: bucket order when there is no plan; the same on every rank.
            stale: parameters have changed, so that what resident units hold is old.
        """
        self.plan, self.record = plan, []
        self._issuer.begin()
        self._track = [op for op in plan.ops[1:] if op.kind not in OF_BUCKETS] if plan else []
        self._numbers = {op.records: number for number, op in enumerate(plan.ops)} if plan else {}
        self._reductions.begin(self.spec.buckets, plan, reduce_order)
        self._cursor, self._open, self._skipped = 0, set(), False
        units = self.spec.units
        self._holds = {s: u for s, u in self._holds.items() if units[u].resident and not stale}
        if self.trace is not None:
            self.trace.begin()
        if self._abandoned:
            self._abandoned = False
            self._arrive_all(raises=False)
        for unit in self._holds.values():  # a pass that skipped the unit has not waited for its gather
            self.arrive(unit)
        self._issue(Op(Kind.BEGIN, -1, 0, (), "begun"))

    def reach(self, position: Position) -> None:
        """Compute has come to an entry or exit of a unit."""
        self.record.append(position)
        planned = self.plan is not None and self._advance(position)
        if self.plan is not None and not planned:
            self.departures += 1
            if not self._disturbs_nothing(position.unit):
                self.plan = None
        if not planned:
            if position.kind is Kind.BACKWARD:
                self._let_go(None)
            self._issue(Op(position.kind, position.unit, 0, (), f"{position.kind}:{position.unit}"))
        if position.kind in EXIT_OF_ENTRY:
            self._assure(position)

    def open_backward(self, *, reduce: bool, replicate: bool = True) -> None:
        """A backward starts.

        Args:
            reduce: False only packs (accumulates); nothing goes over the wire.
            replicate: False keeps what is reduced on this rank's side of a hybrid mesh.
        """
        self._reductions.open(reduce=reduce, replicate=replicate)

    def expect_nothing(self, bucket: int) -> None:
        """A bucket gets no gradient in this backward: it leaves with the one behind it, which need not wait for it."""
        self._reductions.complete(bucket)

    @property
    def holding(self) -> bool:
        """Whether buckets have not left yet, for lack of gradients or behind one that lacks some."""
        return self._reductions.next is not None

    def ready(self, bucket: int) -> None:
        """All gradients of a bucket are there: reduce it, and those behind it in order that waited for it."""
        self._note_pack(bucket)
        self._reductions.complete(bucket)
        while (due := self._reductions.take_next()) is not None:
            self._reduce(due)

    def flush(self) -> None:
        """No more gradients will come: reduce what is left, in order."""
        while (due := self._reductions.take_next(incomplete=True)) is not None:
            self._reduce(due)

    def repeat(self, bucket: int) -> None:
        """Reduce a bucket once more: gradients have reached it after it was packed."""
        self.departures += 1
        self._reductions.repeat(bucket)

    def finish(self) -> None:
        """Let compute wait for the last reduction."""
        planned = self.plan is not None and self._advance(Position(Kind.END, -1))
        if not planned:
            # A plan is for one backward; a further one over the same graph goes without.
            self.plan = None
        if not planned or self._reductions.unplanned:
            self._reductions.wait()
        self._reductions.close()
        self.settle()
        if self.trace is not None:
            self.trace.finish()
        self._issuer.close_ranges()

    def settle(self) -> None:
        """A pass ends: gathers for units that it left out must not be sending rows that the optimizer rewrites."""
        if self.plan is None or self._skipped:
            self._arrive_all()

    def abandon(self) -> None:
        """A pass has failed: the next one first waits for the gathers under way, whether they succeed or not."""
        self._abandoned = True

    def abandon_backward(self) -> None:
        """A backward has failed: wait for its reductions, whether they succeed or not."""
        self._reductions.abandon()
        self.abandon()

    # -- between passes ----------------------------------------------------------------------------------------

    def relocate(self, spec: StepSpec) -> None:
        """Units have moved to other slots: what is gathered is gone, and jobs must be made anew."""
        self._arrive_all()  # the memory that gathers write to is about to go
        self.renew(spec)
        self._issuer.forget_jobs()
        self._holds.clear()
        self._released.clear()
        self._gathered.clear()

    def renew(self, spec: StepSpec) -> None:
        """Units keep other things than before, or there are more buckets; what is gathered stays."""
        self.spec = spec
        users = Counter(unit.slot for unit in spec.units)
        self._exclusive = {slot for slot, count in users.items() if count == 1}

    def fetch(self, unit: int) -> None:
        """Gather a unit; ``arrive`` waits for it."""
        begun = self._issue(Op(Kind.BEGIN, -1, 0, (), "begun"))
        self._gather(unit, begun)

    def arrive(self, unit: int) -> None:
        """Let compute wait for a unit's gather."""
        if unit in self._gathered:
            self._issuer.wait(self._gathered[unit], self.spec.units[unit].name)
            del self._gathered[unit]  # a gather that failed stays, and raises again

    def stop_gathers(self) -> None:
        """What gathers send is about to change: wait for those under way, whether they succeed or not."""
        self._arrive_all(raises=False)

    def _arrive_all(self, *, raises: bool = True) -> None:
        for unit in list(self._gathered):
            with nullcontext() if raises else suppress(OverlapError):
                self.arrive(unit)

    # -- following the plan ------------------------------------------------------------------------------------

    def _advance(self, position: Position) -> bool:
        """Issue everything up to the position's op; False if the plan has none ahead."""
        found = self._find(position)
        if found is None:
            return False
        waiting = self.holding
        for op in self._track[self._cursor : found]:
            if waiting:
                self._let_go(op)
            self._cursor += 1
            if op.kind is Kind.GATHER:
                self._issue(op)
            else:  # skipped on this rank; the plan's collectives still take place, in the plan's order
                # A wait for this exit stands for all exits before it: wait for compute as far as it has come.
                self._issuer.stand_in(op.records, self._issuer.latest)
                self._skipped = True
                self.departures += op.kind in EXIT_OF_ENTRY
        if waiting:
            self._let_go(self._track[found])
        self._cursor = found + 1
        self._issue(self._track[found])
        return True

    def _let_go(self, reached: Op | None) -> None:
        """Let buckets leave that the plan has before an op, if what they lack does not come on this rank.

        So a rank has issued everything planned before the place it has come to, and of two ranks the one that is
        further behind never waits for the other. Without a plan (None) it may be any bucket whose turn it is.
        """
        place = None if reached is None else self._numbers[reached.records]
        while (bucket := self._reductions.due_before(place)) is not None:
            if self._bindings.expects_more(bucket, passed=reached is not None):
                return
            self._reductions.take_next(incomplete=True)
            self._reduce(bucket)

    def _disturbs_nothing(self, unit: int) -> bool:
        """Whether a unit may come at another time than planned: no gather, its own or another's, depends on it.

        That is a unit around others whose backward begins late because a loss does not use all outputs. Which rank
        uses which is the ranks' own affair, so none may leave the plan for it.
        """
        slot = self.spec.units[unit].slot
        return slot == NO_SLOT or (slot in self._exclusive and self._holds.get(slot) == unit)

    def _find(self, position: Position) -> int | None:
        """Where the plan has a position, at or behind the cursor, and may be followed to."""
        kind, unit, track, closes = position.kind, position.unit, self._track, False
        for number in range(self._cursor, len(track)):
            op = track[number]
            if op.index == unit and op.kind is kind:
                return None if closes else number
            # Skipping an exit that has not happened would free a slot in use.
            closes = closes or (op.kind in ENTRY_OF_EXIT and (ENTRY_OF_EXIT[op.kind], op.index) in self._open)
        return None

    def _reduce(self, bucket: int) -> None:
        self._note_pack(bucket)
        pack = self._reductions.planned_pack(bucket)
        if self.plan is not None and pack is not None:
            self._gather_ahead_of(pack)
        self._reductions.reduce(bucket)

    def _note_pack(self, bucket: int) -> None:
        """Record when a bucket is complete, not when it leaves: what completes first is to leave first in the plan."""
        position = Position(Kind.PACK, bucket)
        if self.plan is None and position not in self.record:
            self.record.append(position)

    def _gather_ahead_of(self, pack: Op) -> None:
        """Gathers that the plan has between the last position and this pack."""
        while self._cursor < len(self._track):
            op = self._track[self._cursor]
            if op.kind is not Kind.GATHER or self._numbers[op.records] > self._numbers[pack.records]:
                return
            self._issue(op)
            self._cursor += 1

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
            self._gather(entry.unit, self._issuer.event("begun"))
        elif self.plan is not None and not self._skipped:
            return  # the plan has written every wait that is needed
        # A plan lets the first entry behind a gather wait for it; this pass may have skipped that one.
        self.arrive(entry.unit)

    def _gather(self, unit: int, begun: Event) -> None:
        spec = self.spec.units[unit]
        op = Op(Kind.GATHER, unit, spec.gather_bytes, (), f"gathered:{unit}")
        self._issue(op, (begun, self._released.get(spec.slot, DONE)))

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

    # -- what slots hold ---------------------------------------------------------------------------------------

    def _issue(self, op: Op, extra: Sequence[Event] = ()) -> Event:
        event = self._issuer.issue(op, extra)
        if op.kind is Kind.GATHER:
            self._holds[self.spec.units[op.index].slot] = op.index
            self._gathered[op.index] = event
        elif op.kind in EXIT_OF_ENTRY:
            self._open.add((op.kind, op.index))
            if op.waits:  # for its own gather
                self._gathered.pop(op.index, None)
        elif op.kind in ENTRY_OF_EXIT:
            self._open.discard((ENTRY_OF_EXIT[op.kind], op.index))
            self._note_exit(op, event)
        return event

    def _note_exit(self, op: Op, event: Event) -> None:
        slot = self.spec.units[op.index].slot
        if not self._is_open(op.index):  # a recomputation's forward ends inside the unit's backward
            self._released[slot] = event
        if op.frees:
            self._holds.pop(slot, None)

    def _is_open(self, unit: int) -> bool:
        return (Kind.FORWARD, unit) in self._open or (Kind.BACKWARD, unit) in self._open
