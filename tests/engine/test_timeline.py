"""What is recorded, what was issued when, and that looking changes nothing."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.models import BLOCKS
from support.pair import Sharded, assert_same_bits, whole
from support.ranks import Ranks
from torch import Tensor

from overlap.schedule.op import Kind

STAGES = (0, 1, 2, 3)


def _trained(steps: int = 4, **options: Any) -> Sharded:
    run = Sharded(**options)
    for _ in range(steps):
        run.step()
    return run


def _spans_follow_the_plan(stage: int) -> None:
    run = _trained(stage=stage, timeline=True)
    engine = run.engine
    last = engine.timeline.of_step(engine.timeline.steps()[-1])
    named = {Kind.GATHER: engine.plan.spec.units, Kind.REDUCE: engine.plan.spec.buckets}
    ops = [op for op in engine.plan.ops if op.kind in named]
    planned = Counter((str(op.kind), named[op.kind][op.index].name, op.bytes) for op in ops)
    assert Counter((span.kind, span.unit, span.bytes) for span in last if span.communicates) == planned
    computed = {(span.kind, span.unit) for span in last if span.lane == "compute"}
    assert computed >= {(kind, f"blocks.{n}") for kind in ("forward", "backward") for n in range(BLOCKS)}
    assert {kind for kind, _ in computed} >= {"pack"}
    assert all(span.rank == run.rank for span in last)


@pytest.mark.parametrize("stage", STAGES)
def test_every_planned_op_has_a_span_with_its_unit_and_bytes(ranks: Ranks, stage: int) -> None:
    ranks(2, _spans_follow_the_plan, stage)


def _lanes_do_one_thing_at_a_time() -> None:
    timeline = _trained(timeline=True).engine.timeline
    for step in timeline.steps():
        lanes: dict[str, list[tuple[int, int]]] = {}
        for span in timeline.of_step(step):
            lanes.setdefault(span.lane, []).append((span.start_ns, span.end_ns))
        assert lanes.keys() == {"gather", "compute", "reduce"}
        for lane, spans in lanes.items():
            assert all(end <= start for (_, end), (start, _) in pairwise(spans)), lane


def test_spans_of_a_lane_do_not_overlap(ranks: Ranks) -> None:
    ranks(2, _lanes_do_one_thing_at_a_time)


def _gathers_ahead(prefetch: int) -> None:
    engine = _trained(prefetch=prefetch).engine
    issued = engine.executor.issued
    assert issued == [op.records for op in engine.plan.ops]
    for unit in range(1, BLOCKS + 1 - prefetch):
        assert issued.index(f"gathered:{unit + prefetch}") < issued.index(f"forward:{unit}")
        assert issued.index(f"forward:{unit}") < issued.index(f"forward:{unit + 1}")
    # Backward: the first block, which had to leave, is on its way before the block behind it starts.
    if prefetch == 1:
        assert issued.index("gathered:1#2") < issued.index("backward:2")


@pytest.mark.parametrize("prefetch", [1, 2])
def test_gathers_are_issued_before_the_compute_that_hides_them(ranks: Ranks, prefetch: int) -> None:
    ranks(2, _gathers_ahead, prefetch)


def _observed(**options: Any) -> tuple[list[str], dict[str, Tensor]]:
    run = _trained(**options)
    return run.engine.executor.issued, whole(run.model)


def _looking_changes_nothing(stage: int) -> None:
    issued, params = _observed(stage=stage)
    for options in ({"timeline": True}, {"nvtx": True}, {"timeline": True, "nvtx": True}):
        seen, values = _observed(stage=stage, **options)
        assert seen == issued, f"with {options}"
        assert_same_bits(values, params, f"with {options}")


@pytest.mark.parametrize("stage", [1, 3])
def test_observation_changes_neither_order_nor_bits(ranks: Ranks, stage: int) -> None:
    ranks(2, _looking_changes_nothing, stage)


def _covers_evaluation() -> None:
    run = _trained(2, timeline=True)
    before = len(run.engine.timeline.steps())
    with torch.no_grad():
        run.model(torch.zeros(1, 3, dtype=torch.long))
    spans = run.engine.timeline.of_step(run.engine.timeline.steps()[-1])
    assert len(run.engine.timeline.steps()) == before + 1
    assert {span.kind for span in spans if span.lane == "compute"} - {"stall"} == {"forward"}


def test_a_forward_only_pass_is_a_step_of_its_own(ranks: Ranks) -> None:
    ranks(2, _covers_evaluation)
