"""The executor on passes that follow the plan: what it issues, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from schedule.driver import Driver
from schedule.models import Call, Model, backward, chain, forward, is_exit, step
from schedule.strategies import Planned, orders, plans
from schedule.virtual_gpu import Choose, newest, oldest
from support.relaxed import relaxed

from overlap.errors import StateError
from overlap.schedule.op import Kind, Position
from overlap.schedule.plan import Plan
from overlap.schedule.planner import make_plan


def plan_of(model: Model) -> Plan:
    return make_plan(model.spec, step(model), mode="train", prefetch=model.prefetch, stale=True)


@pytest.fixture
def model() -> Model:
    return chain(4, prefetch=1)


@relaxed
@given(plans(), orders)
def test_a_pass_that_follows_its_plan_issues_exactly_the_plan(planned: Planned, choose: Choose):
    driver = Driver(planned.model.spec)
    driver.run(planned.record, stale=True)
    driver.run(planned.record, planned.plan, stale=planned.stale)
    assert driver.executor.issued == [op.records for op in planned.plan.ops]
    assert driver.executor.departures == 0
    driver.gpu.drain(choose)


@relaxed
@given(plans(), orders)
def test_a_recorded_pass_is_right_and_records_its_order(planned: Planned, choose: Choose):
    driver = Driver(planned.model.spec)
    driver.run(planned.record)
    driver.gpu.drain(choose)
    compute = [position for position in driver.executor.record if position.kind is not Kind.PACK]
    assert compute == [position for position in planned.record if position.kind is not Kind.PACK]


def test_the_record_of_a_first_pass_yields_the_plan(model: Model):
    driver = Driver(model.spec)
    driver.run(step(model))
    assert make_plan(model.spec, driver.executor.record, mode="train", prefetch=1, stale=True) == plan_of(model)


def test_jobs_are_made_once_and_kept(model: Model):
    driver = Driver(model.spec)
    asked: list[str] = []
    make = driver.memory.job
    driver.memory.job = lambda op: (asked.append(op.records), make(op))[1]
    for _ in range(3):
        driver.run(step(model), plan_of(model))
    assert sorted(asked) == sorted(op.records for op in plan_of(model).ops)


def test_reductions_leave_in_plan_order_however_buckets_complete(model: Model):
    driver = Driver(model.spec)
    driver.executor.begin(plan_of(model), (), stale=True)
    driver.executor.open_backward(reduce=True)
    issued = []
    for bucket in (2, 1, 0, 4):
        driver.executor.ready(bucket)
        issued.append([op.index for op in driver.memory.submitted if op.kind is Kind.REDUCE])
    driver.executor.flush()
    issued.append([op.index for op in driver.memory.submitted if op.kind is Kind.REDUCE])
    assert issued == [[], [], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("unused", [{0}, {1}, {2, 3}, {0, 1, 2}, {1, 3, 4}])
def test_a_rank_that_lacks_gradients_issues_the_collectives_of_the_others_at_their_places(unused: set[int]):
    model = chain(6, prefetch=1)
    plan = plan_of(model)
    driver = Driver(model.spec)
    driver.memory.unused = unused
    ops = driver.run([at for at in step(model) if at.kind is not Kind.PACK or at.unit not in unused], plan)
    collectives = [op for op in ops if op.kind in (Kind.GATHER, Kind.REDUCE)]
    assert collectives == [op for op in plan.ops if op.kind in (Kind.GATHER, Kind.REDUCE)]
    driver.gpu.drain()


def test_without_a_plan_too_nothing_waits_for_gradients_that_do_not_come():
    model = chain(6, prefetch=1)
    driver = Driver(model.spec)
    driver.memory.unused = {0}
    positions = [position for position in step(model) if position != Position(Kind.PACK, 0)]
    driver.executor.begin(None, range(len(model.spec.buckets)), stale=True)
    third = [n for n, position in enumerate(positions) if position.kind is Kind.BACKWARD][2]
    first = next(n for n, position in enumerate(positions) if position.kind is Kind.BACKWARD)
    for position in positions[:first]:
        driver.executor.reach(position)
    driver.executor.open_backward(reduce=True)
    for position in positions[first : third + 1]:
        driver.executor.ready(position.unit) if position.kind is Kind.PACK else driver.executor.reach(position)
    assert 0 in [op.index for op in driver.memory.submitted if op.kind is Kind.REDUCE]


def test_without_a_plan_they_leave_in_the_order_given(model: Model):
    driver = Driver(model.spec)
    driver.executor.begin(None, [3, 1, 0, 2, 4], stale=True)
    driver.executor.open_backward(reduce=True)
    for bucket in (0, 1, 2, 3, 4):
        driver.executor.ready(bucket)
    assert [op.index for op in driver.memory.submitted if op.kind is Kind.REDUCE] == [3, 1, 0, 2, 4]


@pytest.mark.parametrize("planned", [True, False])
def test_accumulating_packs_and_puts_nothing_on_the_wire(model: Model, planned: bool):
    driver = Driver(model.spec)
    ops = driver.run(step(model), plan_of(model) if planned else None, reduce=False)
    kinds = [op.kind for op in ops]
    assert kinds.count(Kind.PACK) == 5
    assert Kind.REDUCE not in kinds
    driver.gpu.drain()


def test_the_pass_after_accumulating_reduces_again(model: Model):
    driver = Driver(model.spec)
    driver.run(step(model), plan_of(model), reduce=False)
    driver.run(step(model), plan_of(model))
    driver.gpu.drain(oldest)
    assert driver.memory.reduced == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("choose", [oldest, newest])
def test_a_second_backward_over_the_same_graph_goes_without_the_plan(model: Model, choose: Choose):
    driver = Driver(model.spec)
    driver.run(step(model), plan_of(model))
    driver.backward(backward(model, model.call()))
    driver.gpu.drain(choose)
    assert driver.memory.reduced == [0, 1, 2, 3, 4] * 2
    assert driver.executor.plan is None


def test_resident_parameters_are_gathered_after_an_update_only():
    model = chain(3, prefetch=1, resident=True)
    driver = Driver(model.spec)
    gathers = []
    for stale in (True, False, False, True):
        plan = make_plan(model.spec, step(model), mode="train", prefetch=1, stale=stale)
        ops = driver.run(step(model), plan, stale=stale)
        gathers.append(sum(op.kind is Kind.GATHER for op in ops))
    driver.gpu.drain(oldest)
    assert gathers == [4, 0, 0, 4]
    assert driver.executor.departures == 0


def test_a_gather_leaves_ahead_of_a_pack_that_comes_behind_it_in_the_plan():
    """Buckets of an enclosing unit may become complete between two others, where a gather is due as well."""
    model = chain(4, prefetch=3, ring=2)
    record = step(model)
    first = record.index(Position(Kind.PACK, 0))
    record[first : first + 2] = record[first : first + 2][::-1]
    plan = make_plan(model.spec, record, mode="train", prefetch=model.prefetch, stale=True)
    events = [op.records for op in plan.ops]
    assert events.index("gathered:2#2") == events.index("packed:0") - 1
    driver = Driver(model.spec)
    driver.run(record, plan)
    assert driver.executor.issued == events


def test_gathers_that_the_plan_does_not_foresee_are_counted():
    model = chain(3, prefetch=1, resident=True)
    fresh = make_plan(model.spec, step(model), mode="train", prefetch=1, stale=False)
    driver = Driver(model.spec)
    ops = driver.run(step(model), fresh)
    assert [op.index for op in ops if op.kind is Kind.GATHER] == [0, 1, 2, 3]
    assert driver.executor.departures == 4
    driver.gpu.drain(oldest)


def test_without_a_plan_too_resident_parameters_are_gathered_after_an_update_only():
    model = chain(3, prefetch=1, resident=True)
    driver = Driver(model.spec)
    gathers = []
    for stale in (True, False, True):
        ops = driver.run(step(model), stale=stale)
        gathers.append(sum(op.kind is Kind.GATHER for op in ops))
    assert gathers == [4, 0, 4]


def test_without_a_plan_a_unit_is_gathered_when_compute_asks_for_it(model: Model):
    driver = Driver(model.spec)
    ops = driver.run(forward(model.call()))
    order = [(op.kind, op.index) for op in ops if op.kind in (Kind.GATHER, Kind.FORWARD_END)]
    assert [index for kind, index in order if kind is Kind.GATHER] == [0, 1, 2, 3, 4]
    assert order.index((Kind.GATHER, 2)) > order.index((Kind.FORWARD_END, 1))


@pytest.mark.parametrize("planned", [True, False])
def test_a_unit_that_shares_a_slot_must_not_run_inside_another(model: Model, planned: bool):
    """Blocks 1 and 3 share slot 0; block 3 called from inside block 1 would overwrite what block 1 reads."""
    inside = forward(Call(0, (Call(1, (Call(3),)),)))
    driver = Driver(model.spec)
    with pytest.raises(StateError, match=r"unit 'u3' must not run inside a unit that shares its slot .*'u1'"):
        driver.run(inside, plan_of(model) if planned else None)
    assert Position(Kind.FORWARD, 3) in driver.executor.record
    assert not any(is_exit(position) for position in driver.executor.record)


def test_units_that_moved_are_gathered_where_they_are_now(model: Model):
    driver = Driver(model.spec)
    driver.run(step(model), plan_of(model))
    moved = chain(4, prefetch=3)
    driver.relocate(moved.spec)
    driver.run(step(moved), plan_of(moved))
    driver.gpu.drain(newest)
    assert driver.executor.departures == 0
