"""A plan as a value: its text forms and its hash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from schedule.models import chain, step
from schedule.strategies import Planned, plans
from support.relaxed import relaxed

from overlap.schedule.op import Kind, LaneName
from overlap.schedule.plan import Plan
from overlap.schedule.planner import make_plan
from overlap.schedule.spec import ring_slots


@pytest.fixture
def plan() -> Plan:
    model = chain(3, prefetch=1)
    return make_plan(model.spec, step(model), mode="train", prefetch=1, stale=True)


@relaxed
@given(plans())
def test_json_and_back_is_the_same_plan(planned: Planned):
    back = Plan.from_json(planned.plan.to_json())
    assert back == planned.plan
    assert back.hash == planned.plan.hash


def _with_op(**changes: object) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, ops=(*plan.ops[:-1], replace(plan.ops[-1], **changes)))


def _with_unit(**changes: object) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        units = (*plan.spec.units[:-1], replace(plan.spec.units[-1], **changes))
        return replace(plan, spec=replace(plan.spec, units=units))

    return change


def _with_bucket(**changes: object) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        buckets = (*plan.spec.buckets[:-1], replace(plan.spec.buckets[-1], **changes))
        return replace(plan, spec=replace(plan.spec, buckets=buckets))

    return change


CHANGES: dict[str, Callable[[Plan], Plan]] = {
    "mode": lambda plan: replace(plan, mode="eval"),
    "prefetch": lambda plan: replace(plan, prefetch=2),
    "op order": lambda plan: replace(plan, ops=(*plan.ops[:-2], plan.ops[-1], plan.ops[-2])),
    "op left out": lambda plan: replace(plan, ops=plan.ops[:-1]),
    "op kind": _with_op(kind=Kind.BEGIN),
    "op index": _with_op(index=0),
    "op bytes": _with_op(bytes=1),
    "op waits": _with_op(waits=()),
    "op event": _with_op(records="over"),
    "op frees": _with_op(frees=True),
    "unit name": _with_unit(name="other"),
    "unit slot": _with_unit(slot=7),
    "unit gather bytes": _with_unit(gather_bytes=1),
    "unit slot bytes": _with_unit(slot_bytes=1),
    "unit leaf": _with_unit(leaf=False),
    "unit resident": _with_unit(resident=True),
    "bucket name": _with_bucket(name="other"),
    "bucket buffer": _with_bucket(buffer=7),
    "bucket wire bytes": _with_bucket(wire_bytes=1),
    "bucket pack bytes": _with_bucket(pack_bytes=1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_hash_sees(plan: Plan, change: Callable[[Plan], Plan]):
    assert change(plan).hash != plan.hash


def test_without_wait_takes_out_one_wait(plan: Plan):
    number, op = next((n, op) for n, op in enumerate(plan.ops) if op.waits)
    less = plan.without_wait(number, op.waits[0])
    assert less.ops[number] == replace(op, waits=())
    assert less.ops[:number] + less.ops[number + 1 :] == plan.ops[:number] + plan.ops[number + 1 :]


def test_the_table_shows_each_op_under_its_lane(plan: Plan):
    head, *rows = plan.table().split("\n")
    columns = [(lane, head.index(lane)) for lane in LaneName]
    ends = [start for _, start in columns[1:]] + [head.index("waits for")]
    for op, row in zip(plan.ops, rows, strict=True):
        cells = {lane: row[start:end].strip() for (lane, start), end in zip(columns, ends, strict=True)}
        assert cells == {lane: plan.label(op) if lane is op.lane else "" for lane in LaneName}
        assert row[head.index("waits for") :] == ", ".join(op.waits)


def test_labels_name_units_and_buckets(plan: Plan):
    labels = {op.records: plan.label(op) for op in plan.ops}
    assert labels["gathered:0"] == "gather (root)"
    assert labels["gathered:2"] == "gather u2"
    assert labels["reduced:1"] == "reduce b1"
    assert labels["begun"] == "begin"


def test_leaves_share_the_ring_in_order_of_forward_and_others_have_slots_behind_it():
    assert ring_slots((0, 3, 1, 2), (False, True, True, True), 2) == (2, 1, 0, 0)


def test_units_that_forward_has_not_reached_follow_in_index_order():
    assert ring_slots((2,), (True, True, True), 3) == (1, 2, 0)


def test_a_ring_is_no_larger_than_its_leaves():
    assert ring_slots((0, 1), (False, True), 4) == (1, 0)
