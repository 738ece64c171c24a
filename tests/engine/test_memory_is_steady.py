"""Whatever runs again and again, memory, threads, groups and hooks are what they were; what is dropped goes at once."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.chain import WIDTH, data, sharded_chain
from support.counting import live_bytes
from support.ranks import Ranks
from torch import nn
from torch.distributed import distributed_c10d
from torch.optim import optimizer as torch_optimizer

import overlap

STAGES = (0, 1, 2, 3)
RESHARD = ({"stage": 3}, {"stage": 3, "reshard_after_forward": False}, {"stage": 2}, {"stage": 1}, {"stage": 0})


@contextmanager
def _without_collector() -> Iterator[None]:
    """What a cycle keeps alive stays alive in here."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _no_grad(model: nn.Module) -> None:
    with torch.no_grad():
        model(data())


def _inference(model: nn.Module) -> None:
    with torch.inference_mode():
        model(data())


def _dropped(model: nn.Module) -> None:
    model(data())


def _step(model: nn.Module) -> None:
    model(data()).square().mean().backward()
    model.zero_grad()


def _preference(model: nn.Module) -> None:
    """As DPO: the reference first, without a graph, then both answers of the policy."""
    _no_grad(model)
    (model(data(0)) - model(data(1))).square().mean().backward()
    model.zero_grad()


def _early_exit(model: nn.Module) -> None:
    with torch.no_grad():
        model.blocks[1](model.blocks[0](data()))


WORK = (_no_grad, _inference, _dropped, _step, _preference, _early_exit)


def _same_after_each(options: dict[str, Any]) -> None:
    for work in WORK:
        model = sharded_chain(**options)
        for _ in range(3):
            work(model)
        with _without_collector():
            before, report = live_bytes(), _reported(model)
            for _ in range(12):
                work(model)
            assert (live_bytes(), _reported(model)) == (before, report), work.__name__


def _reported(model: nn.Module) -> int:
    report = overlap.engine_of(model).memory()
    return report.allocated + report.on_top


@pytest.mark.parametrize("options", RESHARD, ids=lambda options: "-".join(map(str, options.values())))
def test_passes_of_any_kind_leave_memory_as_it_was(ranks: Ranks, options: dict[str, Any]) -> None:
    ranks(2, _same_after_each, options)


def _counts() -> dict[str, int]:
    return {
        "threads": threading.active_count(),
        "process groups": len(distributed_c10d._world.pg_map),
        "step hooks": len(torch_optimizer._global_optimizer_pre_hooks)
        + len(torch_optimizer._global_optimizer_post_hooks),
        "module hooks": len(nn.modules.module._global_forward_hooks) + len(nn.modules.module._global_forward_pre_hooks),
        "live bytes": live_bytes(),
    }


def _life(stage: int, build: Callable[..., torch.optim.Optimizer]) -> None:
    """Build, train, evaluate, let go."""
    model = sharded_chain(stage=stage)
    update = build(model.parameters(), lr=1e-2)
    for step in range(2):
        model(data(step)).square().mean().backward()
        update.step()
        update.zero_grad()
    _no_grad(model)


def _twenty_lives(stage: int, build: Callable[..., torch.optim.Optimizer]) -> None:
    for _ in range(2):
        _life(stage, build)
    with _without_collector():
        before = _counts()
        for _ in range(20):
            _life(stage, build)
            dist.barrier()  # no rank opens connections that another has not closed yet
        assert _counts() == before


@pytest.mark.parametrize("build", [overlap.AdamW, torch.optim.AdamW], ids=["overlap", "torch"])
@pytest.mark.parametrize("stage", STAGES)
def test_twenty_models_in_turn_leave_nothing(
    ranks: Ranks, stage: int, build: Callable[..., torch.optim.Optimizer]
) -> None:
    ranks(2, _twenty_lives, stage, build)


def _refs(model: nn.Module) -> list[weakref.ref[Any]]:
    engine = overlap.engine_of(model)
    flats = [flat for unit in engine.units for flat in unit.flats]
    memory = [flat.master for flat in flats] + [slot.buffer for slot in engine.slots.slots] + engine.gradients.ring
    return [weakref.ref(thing) for thing in (model, engine, *model.parameters(), *flats, *memory)]


def _with_nothing_else(stage: int) -> list[weakref.ref[Any]]:
    model = sharded_chain(stage=stage)
    _step(model)
    return _refs(model)


def _with_an_optimizer(stage: int) -> list[weakref.ref[Any]]:
    model = sharded_chain(stage=stage)
    update = overlap.AdamW(model.parameters())
    model(data()).square().mean().backward()
    update.step()
    return _refs(model)


def _with_a_graph(stage: int) -> list[weakref.ref[Any]]:
    model = sharded_chain(stage=stage)
    out = model(data())
    refs = _refs(model)
    del model, out
    return refs


def _with_a_timeline(stage: int) -> list[weakref.ref[Any]]:
    model = sharded_chain(stage=stage, timeline=True)
    _step(model)
    _step(model)
    return _refs(model)


def _after_a_failure(stage: int) -> list[weakref.ref[Any]]:
    model = sharded_chain(stage=stage)
    _step(model)
    handle = model.blocks[2].register_forward_hook(_raise)
    with suppress(ArithmeticError):
        model(data())
    handle.remove()
    return _refs(model)


def _raise(*_: object) -> None:
    raise ArithmeticError


def _after_a_state_dict(stage: int) -> list[weakref.ref[Any]]:
    model = sharded_chain(stage=stage)
    _step(model)
    model.load_state_dict(model.state_dict())
    return _refs(model)


HISTORIES = (
    _with_nothing_else,
    _with_an_optimizer,
    _with_a_graph,
    _with_a_timeline,
    _after_a_failure,
    _after_a_state_dict,
)


def _goes_at_once(stage: int, history: Callable[[int], list[weakref.ref[Any]]]) -> None:
    _life(stage, torch.optim.AdamW)  # torch itself keeps a frame or two of what was built first in a process
    with _without_collector():
        refs = history(stage)
        left = [type(ref()).__name__ for ref in refs if ref() is not None]
        assert not left


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("stage", STAGES)
def test_a_dropped_model_goes_without_the_garbage_collector(
    ranks: Ranks, stage: int, history: Callable[[int], list[weakref.ref[Any]]]
) -> None:
    ranks(2, _goes_at_once, stage, history)


def _deep(blocks: int) -> int:
    """Bytes that passes need beside the model itself, however deep it is."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(blocks)))
    model = overlap.shard(net, unit=nn.Linear, replicate_max_numel=WIDTH)
    _step(model)
    return overlap.engine_of(model).memory().on_top


def test_slots_and_buckets_do_not_grow_with_depth(ranks: Ranks) -> None:
    assert ranks(2, _deep, 4) == ranks(2, _deep, 16)
