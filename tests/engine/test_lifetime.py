"""A model that is dropped takes everything of the engine with it."""

import gc
import threading
import weakref

import pytest
from support.clear_error import clear_error
from support.models import loss_of, seeded
from support.pair import Sharded, shard_blocks
from support.ranks import Ranks

import overlap


def _lanes() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("overlap-")]


def _goes_with_the_model(stage: int) -> None:
    gc.collect()
    before = _lanes()
    run = Sharded(stage=stage)
    for _ in range(2):
        run.step()
    assert sorted(_lanes()) == sorted([*before, "overlap-gather", "overlap-reduce"])
    gone = [weakref.ref(thing) for thing in (run.model, run.engine, *run.engine.units[0].flats)]
    memory = [weakref.ref(flat.master) for unit in run.engine.units for flat in unit.flats]
    del run
    gc.collect()
    assert not [ref for ref in (*gone, *memory) if ref() is not None]
    assert _lanes() == before


@pytest.mark.parametrize("stage", [1, 3])
def test_engine_memory_and_threads_go_with_the_model(ranks: Ranks, stage: int) -> None:
    ranks(2, _goes_with_the_model, stage)


def _refuses_backward_without_model() -> None:
    loss = loss_of(shard_blocks(seeded()), 0, 0)
    gc.collect()
    with clear_error(overlap.StateError, "model", "deleted", "reference"):
        loss.backward()


def test_backward_after_the_model_is_gone_is_refused(ranks: Ranks) -> None:
    ranks(1, _refuses_backward_without_model)


def _refuses_after_close() -> None:
    run = Sharded()
    run.step()
    run.engine.close()
    with clear_error(overlap.StateError, "lane", "closed"):
        run.step()


def test_a_closed_engine_refuses_to_run(ranks: Ranks) -> None:
    ranks(1, _refuses_after_close)
