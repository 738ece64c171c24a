"""Proof, over the plan alone, that no lane timing can make a step wrong.

Happens-before is lane order plus record -> wait. From it follow the five checks below; the first that fails is
raised as ``PlanError`` with the two ops that could meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from overlap.errors import OverlapError, message
from overlap.schedule.op import ENTRY_OF_EXIT, EXIT_OF_ENTRY, OF_BUCKETS, Kind, Op
from overlap.schedule.plan import Plan
from overlap.schedule.spec import NO_SLOT


class PlanError(OverlapError, AssertionError):
    """A plan that some timing of the lanes makes wrong: a fault of the planner, never of the user."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Compute of one unit reads its slot from op ``start`` to op ``end``."""

    unit: int
    start: int
    end: int


def validate(plan: Plan, *, memory_limit: int | None = None) -> None:
    """Check a plan.

    Args:
        plan: what to check.
        memory_limit: bytes that slots and bucket buffers may take together; None for no limit.

    Raises:
        PlanError: an event is waited for before it is recorded; a slot is read before it is gathered or refilled
            while it is read; a bucket is packed and never reduced, or its buffer packed while it is reduced; the pass
            ends before a reduction; or memory exceeds the limit.
    """
    before = _happens_before(plan.ops)
    _check_slots(plan, before)
    _check_buffers(plan, before)
    _check_ends(plan, before)
    if memory_limit is not None and (size := memory(plan)) > memory_limit:
        raise _fault(plan, f"slots and buckets must fit in {memory_limit} bytes, but take {size}", ())


def memory(plan: Plan) -> int:
    """Bytes of slots and bucket buffers: each is as large as the largest unit or bucket that uses it."""
    slots: dict[int, int] = {}
    for unit in plan.spec.units:
        if unit.slot != NO_SLOT:
            slots[unit.slot] = max(slots.get(unit.slot, 0), unit.slot_bytes)
    buffers: dict[int, int] = {}
    for bucket in plan.spec.buckets:
        buffers[bucket.buffer] = max(buffers.get(bucket.buffer, 0), bucket.pack_bytes)
    return sum(slots.values()) + sum(buffers.values())


def _happens_before(ops: Sequence[Op]) -> list[int]:
    """For each op, a bit set of the ops that have finished before it starts."""
    recorded: dict[str, int] = {}
    last_on_lane: dict[str, int] = {}
    before: list[int] = []
    for number, op in enumerate(ops):
        behind = [last_on_lane[op.lane]] if op.lane in last_on_lane else []
        for event in op.waits:
            if event not in recorded:
                text = message(f"op {number} ({op.records})", "wait for a recorded event", event, "reorder the plan")
                raise PlanError(text)
            behind.append(recorded[event])
        bits = 0
        for other in behind:
            bits |= before[other] | 1 << other
        before.append(bits)
        recorded[op.records] = last_on_lane[op.lane] = number
    return before


def _ordered(before: Sequence[int], first: int, then: int) -> bool:
    return bool(before[then] >> first & 1)


def _check_slots(plan: Plan, before: Sequence[int]) -> None:
    gathers = [(n, op) for n, op in enumerate(plan.ops) if op.kind is Kind.GATHER]
    slot_of = [unit.slot for unit in plan.spec.units]
    for read in _reads(plan):
        slot = slot_of[read.unit]
        content = None
        for number, op in gathers:
            if slot_of[op.index] != slot:
                continue
            if _ordered(before, number, read.start):
                content = op.index
            elif not _ordered(before, read.end, number):
                raise _fault(plan, "a slot must not be refilled while it is read", (number, read.start))
        resident = plan.spec.units[read.unit].resident
        if content != read.unit and not (resident and content is None):
            raise _fault(plan, "a unit must be gathered before it computes", (read.start,))


def _reads(plan: Plan) -> list[_Read]:
    reads: list[_Read] = []
    opened: dict[tuple[Kind, int], int] = {}
    for number, op in enumerate(plan.ops):
        if op.index < 0 or op.kind in OF_BUCKETS or plan.spec.units[op.index].slot == NO_SLOT:
            continue
        if op.kind in EXIT_OF_ENTRY:
            opened[op.kind, op.index] = number
        elif op.kind in ENTRY_OF_EXIT:
            start = opened.pop((ENTRY_OF_EXIT[op.kind], op.index), number)
            reads.append(_Read(op.index, start, number))
    last = len(plan.ops) - 1
    return [*reads, *(_Read(unit, start, last) for (_, unit), start in opened.items())]


def _check_buffers(plan: Plan, before: Sequence[int]) -> None:
    uses: dict[int, list[list[int]]] = {}  # buffer -> [pack, last op that reads it] in turn
    packed: dict[int, int] = {}
    reduced: dict[int, list[int]] = {}
    for number, op in enumerate(plan.ops):
        if op.kind is Kind.PACK:
            packed[op.index] = number
        elif op.kind is Kind.REDUCE:
            pack = packed.pop(op.index, number)  # an op is not before itself: never packed counts as too late
            if not _ordered(before, pack, number):
                raise _fault(plan, "a bucket must be packed before it is reduced", (pack, number))
            reduced[op.index] = [pack, number]
            uses.setdefault(plan.spec.buckets[op.index].buffer, []).append(reduced[op.index])
        elif op.kind is Kind.REPLICATE:
            turn = reduced.pop(op.index, [number, number])
            if not _ordered(before, turn[1], number):
                raise _fault(plan, "a bucket must be reduced before it is replicated", (number,))
            turn[1] = number
    if packed:
        raise _fault(plan, "a bucket must be reduced after it is packed", tuple(packed.values()))
    for turns in uses.values():
        for (_, last), (pack, _) in pairwise(turns):
            if not _ordered(before, last, pack):
                raise _fault(plan, "a bucket must be reduced before it is packed again", (last, pack))


def _check_ends(plan: Plan, before: Sequence[int]) -> None:
    """Passes meet at BEGIN and END, so no event needs to outlive its pass."""
    for number, op in enumerate(plan.ops):
        if op.kind is Kind.GATHER and not _ordered(before, 0, number):
            raise _fault(plan, "a gather must come after the begin of its pass", (number,))
        if op.kind in (Kind.REDUCE, Kind.REPLICATE) and not _ordered(before, number, len(plan.ops) - 1):
            raise _fault(plan, "a reduction must end before its pass does", (number,))


def _fault(plan: Plan, rule: str, ops: Sequence[int]) -> PlanError:
    met = ", ".join(f"op {n} {plan.label(plan.ops[n])!r}" for n in ops)
    return PlanError(f"plan {plan.mode}: {rule}{': ' + met if met else ''}; this is a fault of the planner, report it")
