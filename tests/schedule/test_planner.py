"""What a plan promises, on one plan checked by hand and on random models."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule.models import Model, Recompute, chain, forward, is_entry, step
from schedule.strategies import Planned, models, plans, recomputes
from support.relaxed import relaxed

from overlap.schedule.op import Kind, Position
from overlap.schedule.plan import Plan
from overlap.schedule.planner import make_plan
from overlap.schedule.spec import NO_SLOT
from overlap.schedule.validate import PlanError, validate

HAND_CHECKED = """
begun
gathered:0 <- begun
gathered:1
forward:0 <- gathered:0
gathered:2
forward:1 <- gathered:1
forward_done:1
gathered:3 <- forward_done:1
forward:2 <- gathered:2
forward_done:2
gathered:4 <- forward_done:2
forward:3 <- gathered:3
forward_done:3
forward:4 <- gathered:4
forward_done:4
forward_done:0
backward:0
backward:4
packed:0
reduced:0 <- packed:0
backward_done:4
gathered:2#2 <- backward_done:4
backward:3
packed:1
reduced:1 <- packed:1
backward_done:3
gathered:1#2 <- backward_done:3
backward:2 <- gathered:2#2
packed:2 <- reduced:0
reduced:2 <- packed:2
backward_done:2
backward:1 <- gathered:1#2
packed:3 <- reduced:1
reduced:3 <- packed:3
backward_done:1
packed:4 <- reduced:2
reduced:4 <- packed:4
backward_done:0
ended <- reduced:4
"""


def plan_of(model: Model, record: list[Position], *, stale: bool = True) -> Plan:
    return make_plan(model.spec, record, mode="train", prefetch=model.prefetch, stale=stale)


def gathers(plan: Plan) -> Counter[int]:
    return Counter(op.index for op in plan.ops if op.kind is Kind.GATHER)


def test_root_and_four_blocks_at_prefetch_1():
    plan = plan_of(model := chain(4, prefetch=1), step(model))
    drawn = [f"{op.records} <- {', '.join(op.waits)}" if op.waits else op.records for op in plan.ops]
    assert drawn == HAND_CHECKED.split("\n")[1:-1]
    validate(plan)


def test_exits_after_which_nobody_reads_the_slot_free_it():
    plan = plan_of(model := chain(4, prefetch=1), step(model))
    frees = [op.records for op in plan.ops if op.frees]
    done = ("forward_done:1", "forward_done:2", "backward_done:4", "backward_done:3")
    assert frees == [*done, "backward_done:2", "backward_done:1", "backward_done:0"]


def test_bytes_are_those_of_units_and_buckets():
    model = chain(2, prefetch=1)
    for op in plan_of(model, step(model)).ops:
        expected = {
            Kind.GATHER: lambda n: model.spec.units[n].gather_bytes,
            Kind.PACK: lambda n: model.spec.buckets[n].pack_bytes,
            Kind.REDUCE: lambda n: model.spec.buckets[n].wire_bytes,
        }.get(op.kind, lambda n: 0)
        assert op.bytes == expected(op.index), op


@pytest.mark.parametrize("prefetch", [1, 2, 3])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7])
def test_a_chain_gathers_again_for_backward_only_what_its_ring_has_lost(blocks: int, prefetch: int):
    plan = plan_of(model := chain(blocks, prefetch=prefetch), step(model))
    lost = max(blocks - (prefetch + 1), 0)
    assert gathers(plan) == Counter({0: 1, **{n: 1 + (n <= lost) for n in range(1, blocks + 1)}})


def test_a_slot_each_gathers_once():
    plan = plan_of(model := chain(5, prefetch=1, ring=5), step(model))
    assert set(gathers(plan).values()) == {1}


@pytest.mark.parametrize("stale", [True, False])
def test_resident_units_are_gathered_once_when_stale_and_never_when_fresh(stale: bool):
    plan = plan_of(model := chain(3, prefetch=1, resident=True), step(model), stale=stale)
    assert gathers(plan) == Counter(range(4) if stale else ())
    assert not any(op.frees for op in plan.ops)
    validate(plan)


def test_a_forward_alone_has_no_end():
    plan = plan_of(model := chain(3, prefetch=1), forward(model.call()))
    assert plan.ops[-1].records == "forward_done:0"
    validate(plan)


@relaxed
@given(plans())
def test_every_plan_is_valid(planned: Planned):
    validate(planned.plan)


@relaxed
@given(plans())
def test_compute_is_what_was_recorded(planned: Planned):
    mine = (Kind.BEGIN, Kind.GATHER, Kind.REDUCE, Kind.REPLICATE, Kind.END)
    compute = [Position(op.kind, op.index) for op in planned.plan.ops if op.kind not in mine]
    assert compute == planned.record


@relaxed
@given(plans())
def test_units_are_gathered_when_their_slot_holds_something_else(planned: Planned):
    """Counted here per entry, by looking back for whoever used the slot last."""
    units = planned.model.spec.units
    users = [position.unit for position in planned.record if is_entry(position)]
    expected: Counter[int] = Counter()
    for number, user in enumerate(users):
        if units[user].slot == NO_SLOT:
            continue
        before = [other for other in users[:number] if units[other].slot == units[user].slot]
        kept = units[user].resident and not planned.stale
        expected[user] += before[-1] != user if before else not kept
    assert gathers(planned.plan) == +expected


@relaxed
@given(st.data())
def test_the_next_gather_is_issued_before_compute_starts(data: st.DataObject):
    """With prefetch + 1 slots and every leaf called once, no entry finds the next one's gather missing."""
    model = data.draw(models(exact_ring=True))
    ops = plan_of(model, step(model, recompute=data.draw(recomputes(model)))).ops
    issued_at = {op.records: number for number, op in enumerate(ops)}
    entries = [number for number, op in enumerate(ops) if is_entry(Position(op.kind, op.index))]
    for here, following in pairwise(entries):
        assert all(issued_at[event] < here for event in ops[following].waits)


@relaxed
@given(plans())
def test_reductions_leave_in_the_order_of_packs(planned: Planned):
    packs = [position.unit for position in planned.record if position.kind is Kind.PACK]
    assert [op.index for op in planned.plan.ops if op.kind is Kind.REDUCE] == packs


@relaxed
@given(plans(max_leaves=6))
def test_every_wait_is_needed(planned: Planned):
    for number, op in enumerate(planned.plan.ops):
        for event in op.waits:
            with pytest.raises(PlanError):
                validate(planned.plan.without_wait(number, event))


def test_a_pack_waits_only_where_no_earlier_wait_covers_it():
    """Buffers 0, 1, 1, 0: the third pack waits for the second reduction, so the fourth need not for the first."""
    model = chain(3, prefetch=1, buffers=(0, 1, 1, 0))
    waits = {op.records: op.waits for op in plan_of(model, step(model)).ops if op.kind is Kind.PACK}
    assert waits == {"packed:0": (), "packed:1": (), "packed:2": ("reduced:1",), "packed:3": ()}


def test_recomputation_behind_the_entry_of_backward_reads_the_same_gather():
    model = chain(4, prefetch=1)
    plain = plan_of(model, step(model))
    again = plan_of(model, step(model, recompute=Recompute(behind=frozenset({1, 2, 3, 4}))))
    assert gathers(again) == gathers(plain)
    validate(again)
