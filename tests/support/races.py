"""Training under late lanes with NaN in everything freed, with a plan that tests may damage."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from support.lagging import Delay, LaggingComputeLane, LateLane
from support.training import batches, whole_params
from torch import Tensor

import overlap
from overlap.demo.model import GPT, Block, GPTConfig
from overlap.engine import backend, plans
from overlap.schedule.lanes import Job
from overlap.schedule.op import LaneName
from overlap.schedule.plan import Plan

CONFIG = GPTConfig(context=16, layers=3, heads=2, width=64, vocab=257)
STEPS = 3  # one recorded, two planned: slots and buckets are refilled across a step's edge
JITTER_S = 0.008
LATE_S = 0.05


@dataclass(frozen=True)
class Cut:
    """One wait to delete from the plan: of op number ``op`` for ``event``."""

    op: int
    event: str


def planned_waits(stage: int) -> list[tuple[int, str, str]]:
    """Every wait of the training plan: op number, event, and how the plan names the op. Runs on a rank."""
    plan = _train(stage, never, None)[1]
    return [(n, event, plan.label(op)) for n, op in enumerate(plan.ops) for event in op.waits]


def params_with_late(stage: int, lane: str) -> dict[str, Tensor]:
    """Final parameters when every job of one lane is late by a random time; ``none`` for no lane. Runs on a rank."""
    source = random.Random(dist.get_rank())
    compute = ("begin", "forward_end", "backward_end", "pack", "update", "end")

    def jitter(job: Job) -> float:
        mine = job.kind in compute if lane == "compute" else job.kind == lane
        return source.uniform(0, JITTER_S) if mine else 0.0

    return _train(stage, jitter, None)[0]


def survives(stage: int, cut: Cut, expected: dict[str, Tensor]) -> bool:
    """Whether a run without one wait still gives the expected bits when just what it waited for comes late."""

    def late(job: Job) -> float:
        # A pass begins behind the update of the step before: that is what its first gather must not overtake.
        if job.event == cut.event or (cut.event == "begun" and job.kind == "update"):
            return LATE_S
        return 0.0

    params = _train(stage, late, cut)[0]
    equal = torch.tensor(int(all(torch.equal(params[name], value) for name, value in expected.items())))
    dist.all_reduce(equal, dist.ReduceOp.MIN)
    return bool(equal)


def never(job: Job) -> float:
    """Nothing is late."""
    return 0.0


def _train(stage: int, delay: Delay, cut: Cut | None) -> tuple[dict[str, Tensor], Plan]:
    torch.manual_seed(0)
    with _late_lanes(delay), _damaged_plans(cut):
        model = overlap.shard(GPT(CONFIG), stage=stage, unit=Block, poison=True, prefetch=1, bucket_bytes=40_000)
        optimizer = overlap.AdamW(model.parameters(), lr=1e-3)
        for batch in batches(STEPS):
            rows = batch.chunk(dist.get_world_size())[dist.get_rank()]
            model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()).backward()
            optimizer.step()
            optimizer.zero_grad()
        engine = overlap.engine_of(model)
        engine.lanes.compute.enter()
        params, plan = whole_params(model.named_parameters()), engine.plan
        engine.close()
    assert plan is not None
    return params, plan


@contextmanager
def _late_lanes(delay: Delay) -> Iterator[None]:
    def open_lanes(device: torch.device, options: Any, watch: Any) -> backend.Lanes:
        prepare = backend.without_autograd
        lanes = {name: LateLane(name, delay, prepare) for name in (LaneName.GATHER, LaneName.REDUCE)}
        return backend.Lanes(LaggingComputeLane(delay, prepare), lanes)

    with patch.object(backend, "open_lanes", open_lanes):
        yield


@contextmanager
def _damaged_plans(cut: Cut | None) -> Iterator[None]:
    """Delete one wait from every plan, past the proof that would refuse it."""
    if cut is None:
        yield
        return

    def damaged(*args: Any, **kwargs: Any) -> Plan:
        return real_make_plan(*args, **kwargs).without_wait(cut.op, cut.event)

    real_make_plan = plans.make_plan
    with patch.object(plans, "make_plan", damaged), patch.object(plans, "validate", lambda plan: None):
        yield
