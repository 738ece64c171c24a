"""Virtual clocks against timelines worked out by hand, and what prefetching buys."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from schedule.models import Model, chain, step

from overlap.schedule.op import Kind, LaneName, Op
from overlap.schedule.plan import Plan
from overlap.schedule.planner import make_plan
from overlap.schedule.simulate import Simulation, simulate
from overlap.schedule.spec import StepSpec

COMPUTE = {Kind.FORWARD, Kind.BACKWARD}


def plan_of(model: Model) -> Plan:
    return make_plan(model.spec, step(model), mode="train", prefetch=model.prefetch, stale=True)


def costs(*, gather: float = 0, compute: float = 0, reduce: float = 0) -> Callable[[Op], float]:
    """A cost per kind; the root's own ops are free, so that a chain's arithmetic is that of its blocks."""

    def cost(op: Op) -> float:
        if op.kind is Kind.REDUCE:
            return reduce
        if op.index == 0:
            return 0
        return gather if op.kind is Kind.GATHER else compute if op.kind in COMPUTE else 0

    return cost


def starts(simulation: Simulation) -> dict[str, float]:
    return {done.op.records: done.start for done in simulation.ops}


def test_an_empty_plan_takes_no_time():
    assert simulate(Plan("train", StepSpec((), ()), 1, ()), costs()).makespan == 0


def test_an_op_starts_when_its_lane_is_free_and_its_waits_are_true():
    ops = (
        Op(Kind.BEGIN, -1, 0, (), "begun"),
        Op(Kind.GATHER, 1, 0, ("begun",), "gathered:1"),
        Op(Kind.GATHER, 2, 0, (), "gathered:2"),
        Op(Kind.FORWARD, 1, 0, ("gathered:1",), "forward:1"),
        Op(Kind.FORWARD, 2, 0, ("gathered:2",), "forward:2"),
    )
    done = simulate(Plan("train", chain(2, prefetch=1).spec, 1, ops), costs(gather=3, compute=2))
    assert [(each.start, each.end) for each in done.ops] == [(0, 0), (0, 3), (3, 6), (3, 5), (6, 8)]
    assert (done.busy(LaneName.GATHER), done.busy(LaneName.COMPUTE), done.makespan) == (6, 4, 8)


def test_a_forward_runs_behind_its_gathers_when_they_are_slower():
    # Two slots: gather 3 starts when forward 1 (3..5) is over, but its lane is busy until 6 with gather 2.
    at = starts(simulate(plan_of(chain(4, prefetch=1)), costs(gather=3, compute=2)))
    assert [at[f"gathered:{n}"] for n in (1, 2, 3, 4)] == [0, 3, 6, 9]
    assert [at[f"forward:{n}"] for n in (1, 2, 3, 4)] == [3, 6, 9, 12]


def test_a_gather_waits_for_its_slot_when_compute_is_slower():
    at = starts(simulate(plan_of(chain(4, prefetch=1)), costs(gather=1, compute=5)))
    assert [at[f"forward:{n}"] for n in (1, 2, 3, 4)] == [1, 6, 11, 16]
    assert [at[f"gathered:{n}"] for n in (3, 4)] == [6, 11]


@pytest.mark.parametrize("blocks", [8, 16])
def test_prefetching_hides_communication_behind_compute_of_the_same_length(blocks: int):
    plan = plan_of(chain(blocks, prefetch=1))
    done = simulate(plan, costs(gather=1, compute=1, reduce=1))
    compute = done.busy(LaneName.COMPUTE)
    communication = done.busy(LaneName.GATHER) + done.busy(LaneName.REDUCE)
    # The first gather and the last two reductions have no compute to hide behind; so has one at the turn.
    assert max(compute, done.busy(LaneName.GATHER)) <= done.makespan <= compute + 4
    assert done.makespan < 0.6 * (compute + communication)


def test_without_lanes_everything_adds_up():
    plan = plan_of(chain(8, prefetch=1))
    done = simulate(plan, costs(gather=1, compute=1, reduce=1))
    total = sum(done.busy(lane) for lane in LaneName)
    ops, last = [], "begun"
    for op in plan.ops[1:]:
        ops.append(Op(op.kind, op.index, op.bytes, (last,), op.records))
        last = op.records
    serial = simulate(Plan("train", plan.spec, 1, (plan.ops[0], *ops)), costs(gather=1, compute=1, reduce=1))
    assert serial.makespan == total


def test_more_prefetch_absorbs_a_gather_that_is_late():
    """One gather takes as long as three computes: at distance 1 compute stands still, at distance 3 it does not."""

    def cost(op: Op) -> float:
        return 3.0 if op.records == "gathered:6" else costs(gather=0.1, compute=1)(op)

    near, far = (simulate(plan_of(chain(8, prefetch=distance)), cost) for distance in (1, 3))
    assert near.makespan - far.makespan > 1
