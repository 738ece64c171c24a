"""Memory and wire: what is predicted is what is there, and every byte has a name."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.models import SMALL, seeded
from support.pair import Sharded
from support.ranks import Ranks

import overlap
from overlap.engine.memory import MemoryReport
from overlap.engine.wire import WireReport

BF16, FP32 = torch.bfloat16, torch.float32
ADAMW = partial(overlap.AdamW, lr=1e-3)
STAGES = (0, 1, 2, 3)
WORLDS = (1, 2, 3)
DTYPES = (
    {},
    {"param_dtype": BF16},
    {"param_dtype": BF16, "reduce_dtype": BF16, "grad_dtype": BF16},
)


def _trained(steps: int, **options: Any) -> Sharded:
    run = Sharded(optimizer=ADAMW, **options)
    for _ in range(steps):
        run.step()
    return run


def _up(numel: int, align: int = 128) -> int:
    return -(-numel // align) * align


def _rooms(world: int, *, shards: bool) -> dict[bool, int]:
    """Elements of sharded and of replicated parameters on this rank, by hand.

    Each has room for ceil(rows / world) rows, and starts at a multiple of 8 to 128 that is at least as large.
    """
    ends: dict[tuple[str, bool], int] = {}
    for name, param in seeded().named_parameters():
        unit, rows = name.split(".")[1] if name.startswith("blocks.") else "", len(param)
        sharded = shards and param.numel() > SMALL
        room = -(-rows // world) * param.numel() // rows if sharded else param.numel()
        align = next(align for align in (8, 16, 32, 64, 128) if align >= min(room, 128))
        ends[unit, sharded] = _up(ends.get((unit, sharded), 0), align) + room
    return {kind: sum(_up(end, 8) for (_, sharded), end in ends.items() if sharded is kind) for kind in (True, False)}


def _states(stage: int, world: int, dtypes: dict[str, torch.dtype]) -> dict[str, int]:
    """Bytes by hand."""
    compute, wire = dtypes.get("param_dtype", FP32).itemsize, dtypes.get("reduce_dtype", FP32).itemsize
    rooms = _rooms(world, shards=stage > 0)
    mine = sum(rooms.values())
    states = {"master": 4 * mine, "moments": 8 * mine, "gradients": dtypes.get("grad_dtype", FP32).itemsize * mine}
    if compute != 4:
        states["gather input"] = compute * mine
    if stage in (1, 2):
        states["full parameters"] = compute * sum(_full_rooms(world))
    if stage == 1:
        states["full gradients"] = wire * world * rooms[True]
    return states


def _full_rooms(world: int) -> list[int]:
    sizes = [(len(param), param.numel()) for param in seeded().parameters()]
    return [_up(-(-rows // world) * world * (numel // rows)) for rows, numel in sizes if numel > SMALL]


def _memory_is_as_laid_out(world: int) -> None:
    for stage in STAGES:
        for dtypes in DTYPES:
            report = _trained(1, stage=stage, **dtypes).engine.memory()
            states = {item.name: item.allocated for item in report.items if item.state}
            assert states == _states(stage, world, dtypes), f"stage {stage}, {dtypes}"
            assert report.allocated == report.predicted == sum(states.values())
            assert all(item.allocated == item.predicted for item in report.items)


@pytest.mark.parametrize("world", WORLDS)
def test_allocated_states_are_those_of_the_layout(ranks: Ranks, world: int) -> None:
    ranks(world, _memory_is_as_laid_out, world)


def _memory_formula(world: int) -> None:
    numel = sum(param.numel() for param in seeded().parameters())
    per_parameter = {0: 16, 1: 4 + 12 / world, 2: 2 + 14 / world, 3: 16 / world}
    for stage in STAGES:
        report = _trained(1, stage=stage, param_dtype=BF16, grad_dtype=BF16).engine.memory()
        assert report.formula == round(numel * per_parameter[stage])


@pytest.mark.parametrize("world", WORLDS)
def test_the_formula_is_zeros_table(ranks: Ranks, world: int) -> None:
    ranks(world, _memory_formula, world)


def _sizes(report: MemoryReport) -> tuple[int, int]:
    return report.allocated, report.on_top


def _memory_is_steady() -> None:
    for stage in STAGES:
        run = _trained(2, stage=stage, param_dtype=BF16)
        after_two = _sizes(run.engine.memory())
        for _ in range(3):
            run.step()
            assert _sizes(run.engine.memory()) == after_two, f"stage {stage}"


def test_memory_is_constant_from_the_second_step_on(ranks: Ranks) -> None:
    ranks(2, _memory_is_steady)


def _check_explained(report: WireReport, context: str) -> None:
    assert abs(report.counted - report.formula - sum(report.items.values())) < 1, context


def _wire_formula(stage: int, world: int, dtypes: dict[str, torch.dtype], gathers: int = 2) -> float:
    compute, wire = dtypes.get("param_dtype", FP32).itemsize, dtypes.get("reduce_dtype", FP32).itemsize
    per_parameter = {0: 2 * wire, 1: compute + wire, 2: compute + wire, 3: gathers * compute + wire}[stage]
    numel = sum(param.numel() for param in seeded().parameters())
    return per_parameter * numel * (world - 1) / world


def _wire_adds_up(world: int) -> None:
    for stage in STAGES:
        for dtypes in DTYPES:
            report = _trained(2, stage=stage, **dtypes).engine.wire()
            assert report.formula == pytest.approx(_wire_formula(stage, world, dtypes))
            _check_explained(report, f"stage {stage}, {dtypes}")
            assert (report.counted > 0) == (world > 1)


@pytest.mark.parametrize("world", WORLDS)
def test_counted_bytes_are_the_formula_and_its_items(ranks: Ranks, world: int) -> None:
    ranks(world, _wire_adds_up, world)


def _wire_without_second_gather() -> None:
    report = _trained(4, reshard_after_forward=False).engine.wire()
    assert report.formula == pytest.approx(_wire_formula(3, dist.get_world_size(), {}, gathers=1))
    _check_explained(report, "gathered once")
    assert not any("gathers" in name for name in report.items)


def test_parameters_that_stay_after_forward_are_gathered_once(ranks: Ranks) -> None:
    ranks(2, _wire_without_second_gather)


def _names_the_rest() -> None:
    first = _trained(1).engine.wire()
    assert set(first.items) == {"not planned"}
    _check_explained(first, "the recorded step")
    run = Sharded(optimizer=partial(ADAMW, max_grad_norm=1.0))
    for _ in range(4):
        run.step()
    report = run.engine.wire()
    params, buckets = len(run.engine.gradients.params), len(run.engine.gradients.buckets)
    assert report.other == {"control": params + buckets, "norm": 2 * 8}


def test_control_and_norm_are_listed_apart(ranks: Ranks) -> None:
    ranks(2, _names_the_rest)
