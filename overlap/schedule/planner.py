"""Turn the recorded order of a pass into a plan.

With prefetch distance 1, slots in a ring of 2 (units A..D, root R gathered first):

    gather    R  A   B .. C .. D            B ..... A
    compute      R   A .. B .. C .. D | D .. C .. B ..... A | end
    reduce                               D .. C .. B ... A

Three rules make it:

1. A gather is issued before the compute entry that stands ``prefetch`` entries ahead of its own, or as soon as the
   slot's last reader has been issued, whichever is later. What is still in its slot is not gathered again.
2. A wait is written only where no earlier wait or lane order already implies it, so that every wait is needed.
3. Reductions keep one order, that of the record, on every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from overlap.schedule.op import EXIT_OF_ENTRY, Kind, Op, Position
from overlap.schedule.plan import Plan
from overlap.schedule.spec import NO_SLOT, StepSpec

START = -1  # the position before the first one: the pass's BEGIN


@dataclass(frozen=True, slots=True)
class _Need:
    """A gather: the entry that needs it, and the exit that frees its slot."""

    entry: int
    unit: int
    freed_at: int


def make_plan(spec: StepSpec, record: Sequence[Position], *, mode: str, prefetch: int, stale: bool) -> Plan:
    """Build the plan of one kind of pass.

    Args:
        spec: units and buckets.
        record: the order seen in a recorded pass of this mode: compute entries and exits, and packs (their
            ``unit`` is a bucket index) where the bucket became complete.
        mode: name for tables and files.
        prefetch: gathers are issued this many compute entries ahead, at least 1.
        stale: parameters have changed since resident units were last gathered.
    """
    return _Builder(spec, record, prefetch, stale).build(mode)


class _Builder:
    def __init__(self, spec: StepSpec, positions: Sequence[Position], prefetch: int, stale: bool) -> None:
        self.spec, self.positions = spec, positions
        needs = _needs(spec, positions, stale)
        self.issue = _issue_points(positions, needs, prefetch)
        self.frees = _freeing_exits(spec, positions, needs)
        self.prefetch = prefetch
        self.ops: list[Op] = []
        self.seen: Counter[str] = Counter()
        # Events by position, and how far each lane has already waited for another.
        self.exit_event: dict[int, str] = {START: "begun"}
        self.gathered: dict[int, tuple[int, str]] = {}  # entry position -> (gather number, event)
        self.gathers = 0
        self.compute_waited_gather = 0
        self.gather_waited_exit: int | None = None
        self.buffer_reduce: dict[int, tuple[int, str]] = {}  # buffer -> (reduce number, its last event)
        self.reduces = 0
        self.compute_waited_reduce = 0

    def build(self, mode: str) -> Plan:
        self._emit(Kind.BEGIN, -1, "begun")
        for number, position in enumerate(self.positions):
            for need in self.issue.get(number, ()):
                self._gather(need)
            if position.kind is Kind.PACK:
                self._pack(position.unit)
            elif position.kind in EXIT_OF_ENTRY:
                self._entry(number, position)
            else:
                self._exit(number, position)
        if any(position.kind is Kind.BACKWARD for position in self.positions):
            self._end()
        return Plan(mode, self.spec, self.prefetch, tuple(self.ops))

    def _emit(
        self,
        kind: Kind,
        index: int,
        event: str,
        waits: tuple[str, ...] = (),
        size: int = 0,
        frees: bool = False,
    ) -> str:
        self.seen[event] += 1
        unique = event if self.seen[event] == 1 else f"{event}#{self.seen[event]}"
        self.ops.append(Op(kind, index, size, waits, unique, frees))
        return unique

    def _gather(self, need: _Need) -> None:
        # The gather lane is in order and so is compute: waiting for the latest exit covers all before it.
        waits: tuple[str, ...] = ()
        if self.gather_waited_exit is None or need.freed_at > self.gather_waited_exit:
            waits, self.gather_waited_exit = (self.exit_event[need.freed_at],), need.freed_at
        size = self.spec.units[need.unit].gather_bytes
        event = self._emit(Kind.GATHER, need.unit, f"gathered:{need.unit}", waits, size)
        self.gathers += 1
        self.gathered[need.entry] = (self.gathers, event)

    def _entry(self, number: int, position: Position) -> None:
        waits: tuple[str, ...] = ()
        gather, event = self.gathered.get(number, (0, ""))
        if gather > self.compute_waited_gather:
            waits, self.compute_waited_gather = (event,), gather
        self._emit(position.kind, position.unit, f"{position.kind}:{position.unit}", waits)

    def _exit(self, number: int, position: Position) -> None:
        name = "forward_done" if position.kind is Kind.FORWARD_END else "backward_done"
        frees = number in self.frees
        self.exit_event[number] = self._emit(position.kind, position.unit, f"{name}:{position.unit}", frees=frees)

    def _pack(self, bucket: int) -> None:
        spec = self.spec.buckets[bucket]
        waits: tuple[str, ...] = ()
        last, event = self.buffer_reduce.get(spec.buffer, (0, ""))
        if last > self.compute_waited_reduce:
            waits, self.compute_waited_reduce = (event,), last
        packed = self._emit(Kind.PACK, bucket, f"packed:{bucket}", waits, spec.pack_bytes)
        last_event = self._emit(Kind.REDUCE, bucket, f"reduced:{bucket}", (packed,), spec.wire_bytes)
        if spec.replicate_bytes:
            last_event = self._emit(Kind.REPLICATE, bucket, f"replicated:{bucket}", (last_event,), spec.replicate_bytes)
        self.reduces += 1
        self.buffer_reduce[spec.buffer] = (self.reduces, last_event)

    def _end(self) -> None:
        last, event = max(self.buffer_reduce.values(), default=(0, ""))
        waits = (event,) if last > self.compute_waited_reduce else ()
        self._emit(Kind.END, -1, "ended", waits)


def _needs(spec: StepSpec, positions: Sequence[Position], stale: bool) -> list[_Need]:
    """Which entries find their unit absent, following what each slot holds."""
    holds = {} if stale else {unit.slot: i for i, unit in enumerate(spec.units) if unit.resident}
    freed_at: dict[int, int] = {}
    needs = []
    for number, position in enumerate(positions):
        if position.kind is Kind.PACK or (slot := spec.units[position.unit].slot) == NO_SLOT:
            continue
        if position.kind not in EXIT_OF_ENTRY:
            freed_at[slot] = number
        elif holds.get(slot) != position.unit:
            needs.append(_Need(number, position.unit, freed_at.get(slot, START)))
            holds[slot] = position.unit
    return needs


def _issue_points(positions: Sequence[Position], needs: Sequence[_Need], prefetch: int) -> dict[int, list[_Need]]:
    """Position before which each gather is issued; never earlier than the gather before it."""
    entries = [n for n, position in enumerate(positions) if position.kind in EXIT_OF_ENTRY]
    rank = {number: n for n, number in enumerate(entries)}
    points: dict[int, list[_Need]] = {}
    earliest = 0
    for need in needs:
        target = entries[max(rank[need.entry] - prefetch, 0)]
        earliest = max(earliest, target, need.freed_at + 1)
        points.setdefault(earliest, []).append(need)
    return points


def _freeing_exits(spec: StepSpec, positions: Sequence[Position], needs: Sequence[_Need]) -> set[int]:
    """Exits after which the slot's content is never read again: a refill follows, or the pass ends."""
    frees = {need.freed_at for need in needs}
    last_exit = {
        spec.units[position.unit].slot: number
        for number, position in enumerate(positions)
        if position.kind in (Kind.FORWARD_END, Kind.BACKWARD_END)
    }
    kept = {unit.slot for unit in spec.units if unit.resident} | {NO_SLOT}
    frees |= {number for slot, number in last_exit.items() if slot not in kept}
    return frees - {START}
