"""Passes that depart from their plan: slower, never wrong, and counted.

``Driver`` raises a ``MisuseError`` as soon as a slot is read that holds another unit, is filled while it is read, or
a pass ends before its reductions, in whatever order the streams run.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule.driver import Driver
from schedule.models import Call, Model, backward, build, chain, forward, step
from schedule.strategies import models, orders, plans, wild_calls
from schedule.virtual_gpu import Choose, newest, oldest
from support.relaxed import relaxed

from overlap.schedule.op import Kind, Position
from overlap.schedule.plan import Plan
from overlap.schedule.planner import make_plan


def plan_of(model: Model, record: list[Position] | None = None) -> Plan:
    return make_plan(model.spec, record or step(model), mode="train", prefetch=model.prefetch, stale=True)


def root_calls(*blocks: int) -> Call:
    return Call(0, tuple(Call(block) for block in blocks))


@dataclass(frozen=True)
class Departure:
    """A pass over six blocks, and how many departures it counts for."""

    positions: list[Position]
    counted: int
    finish: bool = True


CHAIN = chain(6, prefetch=1)
TWICE = root_calls(1, 2, 2, 3, 4, 5, 6)
DEPARTURES = {
    "a unit skipped in forward and backward": Departure(step(CHAIN, root_calls(1, 2, 4, 5, 6)), 2),
    "the first unit skipped": Departure(step(CHAIN, root_calls(2, 3, 4, 5, 6)), 2),
    "a backward that ends early": Departure(forward(CHAIN.call()) + backward(CHAIN, CHAIN.call(), leaves=2), 4),
    "a backward without the last units": Departure(forward(CHAIN.call()) + backward(CHAIN, root_calls(1, 2, 3, 4)), 2),
    "an exception in forward": Departure(forward(CHAIN.call())[:6], 0),
    "an exception in backward": Departure(step(CHAIN)[:20], 0, finish=False),
}
LEAVING = {
    "a unit called twice": step(CHAIN, TWICE),
    "order swapped": step(CHAIN, root_calls(1, 3, 2, 4, 5, 6)),
    "order reversed": step(CHAIN, root_calls(6, 5, 4, 3, 2, 1)),
    "a unit called again at the end": step(CHAIN, root_calls(1, 2, 3, 4, 5, 6, 1)),
}


@pytest.fixture(params=[1, 2, 6])
def blocks(request: pytest.FixtureRequest) -> Model:
    """Six blocks at several prefetch distances; at 6 each has a slot to itself."""
    return chain(6, prefetch=request.param)


@pytest.mark.parametrize("choose", [oldest, newest])
@pytest.mark.parametrize("departure", DEPARTURES.values(), ids=DEPARTURES)
def test_positions_left_out_are_counted_one_by_one(blocks: Model, departure: Departure, choose: Choose):
    driver = Driver(blocks.spec)
    driver.run(departure.positions, plan_of(blocks), finish=departure.finish)
    assert driver.executor.departures == departure.counted
    _a_planned_pass_follows(driver, blocks, choose)


@pytest.mark.parametrize("choose", [oldest, newest])
@pytest.mark.parametrize("positions", LEAVING.values(), ids=LEAVING)
def test_a_position_the_plan_does_not_have_ahead_ends_it(blocks: Model, positions: list[Position], choose: Choose):
    driver = Driver(blocks.spec)
    driver.run(positions, plan_of(blocks))
    assert driver.executor.departures >= 1
    if blocks.prefetch < 6:  # with a slot to itself, a unit may come at any time
        assert driver.executor.plan is None
    _a_planned_pass_follows(driver, blocks, choose)


@pytest.mark.parametrize("choose", [oldest, newest])
def test_a_unit_around_others_may_begin_its_backward_late(blocks: Model, choose: Choose):
    """A loss that does not use all outputs: which, may depend on the rank, so the order of gathers may not."""
    driver = Driver(blocks.spec)
    positions = step(blocks)
    late = Position(Kind.BACKWARD, 0)
    at = positions.index(late)
    ends = [n for n, position in enumerate(positions) if position.kind is Kind.BACKWARD_END and n > at]
    positions.insert(ends[1] + 1, late)
    positions.remove(late)
    plan = plan_of(blocks)
    ops = driver.run(positions, plan)
    assert driver.executor.plan is plan
    assert [op for op in ops if op.kind is Kind.GATHER] == [op for op in plan.ops if op.kind is Kind.GATHER]
    _a_planned_pass_follows(driver, blocks, choose)


def _a_planned_pass_follows(driver: Driver, model: Model, choose: Choose) -> None:
    before = driver.executor.departures
    driver.run(step(model), plan_of(model))
    assert driver.executor.departures == before
    driver.gpu.drain(choose)


def test_gathers_of_skipped_units_still_take_place_in_plan_order():
    """The other ranks, which may not skip, issue them too."""
    driver = Driver(CHAIN.spec)
    gathers = [op for op in plan_of(CHAIN).ops if op.kind is Kind.GATHER]
    ops = driver.run(step(CHAIN, root_calls(1, 2, 4, 5, 6)), plan_of(CHAIN))
    assert [op.index for op in ops if op.kind is Kind.GATHER] == [op.index for op in gathers]


def test_a_gather_behind_a_skipped_exit_waits_for_who_really_read_the_slot():
    """The plan has unit 2 twice and lets the gather of 4 wait for its second exit; this pass calls it once."""
    driver = Driver(CHAIN.spec)
    driver.run(step(CHAIN), plan_of(CHAIN, step(CHAIN, TWICE)))
    driver.gpu.drain(newest)


@pytest.mark.parametrize("choose", [oldest, newest])
def test_an_entry_waits_for_a_gather_whose_first_reader_was_skipped(choose: Choose):
    """The plan lets the first of two calls wait; this pass takes a branch around it inside the first outer call."""
    model = build([[1], [2, 3], [], []], prefetch=1)
    twice = Call(0, (model.call(1), model.call(1)))
    branch = Call(0, (Call(1), Call(1, (Call(3),))))
    driver = Driver(model.spec)
    driver.run(step(model, branch), plan_of(model, step(model, twice)))
    driver.gpu.drain(choose)


def test_a_resident_unit_skipped_after_an_update_is_waited_for_in_the_next_pass():
    model = chain(3, prefetch=1, resident=True)
    plans = {
        stale: make_plan(model.spec, step(model), mode="train", prefetch=1, stale=stale) for stale in (True, False)
    }
    driver = Driver(model.spec)
    driver.run(step(model, root_calls(1, 2)), plans[True], stale=True)
    driver.run(step(model), plans[False], stale=False)
    driver.gpu.drain(oldest)


def test_buckets_of_a_backward_that_ends_early_are_reduced_all_the_same():
    driver = Driver(CHAIN.spec)
    driver.run(forward(CHAIN.call()) + backward(CHAIN, CHAIN.call(), leaves=2), plan_of(CHAIN))
    driver.gpu.drain()
    assert driver.memory.reduced == [op.index for op in plan_of(CHAIN).ops if op.kind is Kind.REDUCE]


@pytest.mark.parametrize("choose", [oldest, newest])
@pytest.mark.parametrize("bucket", range(7))
@pytest.mark.parametrize("planned", [True, False])
def test_a_bucket_reduced_once_more_is_waited_for(bucket: int, planned: bool, choose: Choose):
    driver = Driver(CHAIN.spec)
    driver.run(step(CHAIN), plan_of(CHAIN) if planned else None, repeat=bucket)
    driver.gpu.drain(choose)
    assert driver.memory.reduced == [0, 1, 2, 3, 4, 5, 6, bucket]
    assert driver.executor.departures == 1


def test_a_plan_made_from_a_pass_with_a_repetition_reduces_each_bucket_once():
    """Who repeats a bucket in the recorded pass repeats it in every pass: it does not belong into the plan."""
    driver = Driver(CHAIN.spec)
    driver.run(step(CHAIN), repeat=0)
    assert plan_of(CHAIN, driver.executor.record) == plan_of(CHAIN)


@relaxed
@given(st.data(), plans(max_leaves=5), orders)
def test_any_other_pass_over_the_same_units_is_right(data: st.DataObject, planned, choose: Choose):
    driver = Driver(planned.model.spec)
    driver.run(planned.record)
    for _ in range(2):
        _wild_pass(data, driver, planned.model, planned.plan, stale=planned.stale)
    driver.run(planned.record, planned.plan, stale=planned.stale)
    driver.gpu.drain(choose)


@relaxed
@given(st.data(), models(max_leaves=5), orders)
def test_any_passes_without_a_plan_are_right(data: st.DataObject, model: Model, choose: Choose):
    driver = Driver(model.spec)
    for _ in range(3):
        _wild_pass(data, driver, model, None, stale=data.draw(st.booleans()))
    driver.gpu.drain(choose)


def _wild_pass(data: st.DataObject, driver: Driver, model: Model, plan: Plan | None, *, stale: bool) -> None:
    call = data.draw(wild_calls(model))
    positions = forward(call)
    if data.draw(st.booleans()):
        positions += backward(model, call, leaves=data.draw(st.integers(0, 8)))
    end = data.draw(st.integers(1, len(positions)))
    driver.run(positions[:end], plan, stale=stale, finish=end == len(positions))
