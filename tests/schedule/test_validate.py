"""Each rule of the proof, met by a good plan that is broken in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedule.models import chain, step

from overlap.schedule.op import Kind, Op
from overlap.schedule.plan import Plan
from overlap.schedule.planner import make_plan
from overlap.schedule.validate import PlanError, memory, validate

MODEL = chain(4, prefetch=1)
PLAN = make_plan(MODEL.spec, step(MODEL), mode="train", prefetch=1, stale=True)


def number_of(event: str) -> int:
    return next(number for number, op in enumerate(PLAN.ops) if op.records == event)


def without(event: str) -> Plan:
    """The op that records ``event``, and whatever waits for it, left out."""
    kept = (replace(op, waits=tuple(wait for wait in op.waits if wait != event)) for op in PLAN.ops)
    return replace(PLAN, ops=tuple(op for op in kept if op.records != event))


def moved(event: str, before: str) -> Plan:
    ops = [op for op in PLAN.ops if op.records != event]
    place = next(number for number, op in enumerate(ops) if op.records == before)
    return replace(PLAN, ops=(*ops[:place], PLAN.ops[number_of(event)], *ops[place:]))


def without_wait(event: str, waits_for: str) -> Plan:
    assert waits_for in PLAN.ops[number_of(event)].waits
    return PLAN.without_wait(number_of(event), waits_for)


def assert_refused(plan: Plan, rule: str, *ops: str) -> None:
    with pytest.raises(PlanError, match=rule) as caught:
        validate(plan)
    for op in ops:
        assert repr(op) in str(caught.value)


def test_the_plan_that_is_broken_below_is_good():
    validate(PLAN)


def test_an_event_is_recorded_before_it_is_waited_for():
    plan = moved("gathered:4", before="forward_done:2")
    assert_refused(plan, r"op \d+ \(gathered:4\) must wait for a recorded event, but got forward_done:2")


def test_a_unit_is_gathered_before_it_computes():
    assert_refused(without("gathered:2"), "must be gathered before it computes", "forward u2")


def test_a_gather_that_compute_does_not_wait_for_is_none():
    assert_refused(without_wait("forward:2", "gathered:2"), "refilled while it is read|gathered before it computes")


def test_a_slot_that_another_unit_has_taken_is_not_read():
    assert_refused(without("gathered:2#2"), "must be gathered before it computes", "backward u2")


def test_a_slot_is_not_refilled_while_it_is_read():
    plan = without_wait("gathered:3", "forward_done:1")
    assert_refused(plan, "must not be refilled while it is read", "gather u3", "forward u1")


def test_a_unit_that_never_leaves_is_read_to_the_end():
    plan = without("backward_done:4")
    ops = (replace(op, waits=("forward_done:4",)) if op.records == "gathered:2#2" else op for op in plan.ops)
    plan = replace(plan, ops=tuple(ops))
    assert_refused(plan, "must not be refilled while it is read", "gather u2", "backward u4")


def test_a_bucket_is_packed_before_it_is_reduced():
    plan = without_wait("reduced:1", "packed:1")
    assert_refused(plan, "must be packed before it is reduced", "pack b1", "reduce b1")


def test_a_bucket_that_is_never_packed_is_not_reduced():
    assert_refused(without("packed:1"), "must be packed before it is reduced", "reduce b1")


def test_a_bucket_that_is_packed_is_reduced():
    assert_refused(without("reduced:1"), "must be reduced after it is packed", "pack b1")


def test_a_buffer_is_reduced_before_it_is_packed_again():
    plan = without_wait("packed:2", "reduced:0")
    assert_refused(plan, "must be reduced before it is packed again", "reduce b0", "pack b2")


def test_a_gather_comes_after_the_begin_of_its_pass():
    assert_refused(without_wait("gathered:0", "begun"), "must come after the begin of its pass", "gather (root)")


def test_a_reduction_ends_before_its_pass_does():
    assert_refused(without_wait("ended", "reduced:4"), "must end before its pass does", "reduce b3")


def test_what_resident_units_hold_from_earlier_passes_may_be_read():
    model = chain(2, prefetch=1, resident=True)
    fresh = make_plan(model.spec, step(model), mode="train", prefetch=1, stale=False)
    validate(fresh)
    units = tuple(replace(unit, resident=False) for unit in fresh.spec.units)
    with pytest.raises(PlanError, match="must be gathered before it computes"):
        validate(replace(fresh, spec=replace(fresh.spec, units=units)))


def test_memory_counts_the_largest_user_of_each_slot_and_buffer():
    # Slot 0 holds units 1 and 3, slot 1 units 2 and 4, slot 2 the root; buffers take buckets 0, 2, 4 and 1, 3.
    assert memory(PLAN) == (103 + 104 + 100) + (204 + 203)


def test_memory_stays_within_its_limit():
    size = memory(PLAN)
    validate(PLAN, memory_limit=size)
    with pytest.raises(PlanError, match=f"must fit in {size - 1} bytes, but take {size}"):
        validate(PLAN, memory_limit=size - 1)


def test_an_op_may_not_be_moved_ahead_of_its_lane():
    """Lane order is part of the proof: packing ahead of the reduction that still reads the buffer is seen."""
    ops = list(PLAN.ops)
    first, second = number_of("packed:0"), number_of("packed:2")
    ops[second] = Op(Kind.PACK, 2, 202, (), "packed:2")
    ops.insert(first + 1, ops.pop(second))
    assert_refused(replace(PLAN, ops=tuple(ops)), "packed again|packed before")
