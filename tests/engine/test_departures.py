"""Passes that the plan does not foresee give what one process gives, and are counted."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.models import loss_of
from support.pair import Pair, routed
from support.ranks import Ranks
from torch import nn
from torch.utils.hooks import RemovableHandle

import overlap

STAGES = (0, 1, 2, 3)
OTHER_ROUTES = (
    (0, 1, 1, 2),  # a block twice in a row
    (0, 1, 2, 0),  # a block again later
    (2, 0, 1),  # another order
    (0, 2),  # a block left out
    (0,),  # an early exit
    (),
)


def _departs_and_returns(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    pair.step()
    for route in OTHER_ROUTES:
        pair.step()
        planned = pair.engine.deviations
        pair.step(routed(*route))
        assert pair.engine.deviations > planned, f"{route} departs"
        departed = pair.engine.deviations
        pair.step()
        assert pair.engine.deviations == departed, f"the step after {route} follows the plan"
        pair.check(f"after {route}")


@pytest.mark.parametrize("stage", STAGES)
def test_routes_off_the_plan_equal_one_process_and_are_counted(ranks: Ranks, stage: int) -> None:
    ranks(2, _departs_and_returns, stage)


def _first_pass_is_odd(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    pair.step(routed(0, 2, 2, 1))
    pair.step()
    pair.step(routed(0, 2, 2, 1))
    pair.check()


@pytest.mark.parametrize("stage", STAGES)
def test_the_recorded_order_may_be_the_odd_one(ranks: Ranks, stage: int) -> None:
    ranks(2, _first_pass_is_odd, stage)


def _slow_down(engine: overlap.Engine) -> None:
    """Communication lags far behind compute, so that a wait that is missing shows."""
    for comm in engine.comms.values():
        for name in ("all_gather", "reduce_scatter", "all_reduce"):
            setattr(comm, name, partial(_late, getattr(type(comm), name).__get__(comm)))


def _late(collective: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    time.sleep(0.005)
    collective(*args, **kwargs)


def _leaves_a_gather_behind(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    _slow_down(pair.engine)
    whole_route, shorter = routed(0, 1, 2), routed(0, 1)
    for route in (whole_route, whole_route, shorter, whole_route):
        if route is not whole_route:
            pair.step()  # so that resident units are gathered again, and the last one's gather is not waited for
        with torch.no_grad():
            mine, plain = (route(model, pair.rank, 5) for model in (pair.model, pair.plain))
        assert torch.equal(mine, plain)


@pytest.mark.parametrize("stage", STAGES)
def test_a_gather_that_one_pass_left_behind_is_waited_for_in_the_next(ranks: Ranks, stage: int) -> None:
    ranks(2, _leaves_a_gather_behind, stage)


class _BrokenError(Exception):
    pass


def _break(*_: object) -> None:
    raise _BrokenError


def _breaks_in_forward(model: nn.Module) -> RemovableHandle:
    return model.blocks[1].register_forward_pre_hook(_break)


def _breaks_in_backward(model: nn.Module) -> RemovableHandle:
    return model.blocks[1].up.register_forward_hook(lambda module, args, out: out.register_hook(_break) and None)


def _fails_then_goes_on(stage: int, breaks: Callable[[nn.Module], RemovableHandle]) -> None:
    pair = Pair(stage=stage, poison=True)
    public = list(pair.model.parameters())
    for _ in range(2):  # before anything is recorded, and when a plan is followed
        _slow_down(pair.engine)
        handle = breaks(pair.model)
        with pytest.raises(_BrokenError):
            loss_of(pair.model, pair.rank, pair.steps).backward()
        handle.remove()
        assert all(mine is param for mine, param in zip(pair.model.parameters(), public, strict=True))
        pair.update.zero_grad()
        for _ in range(2):
            pair.step()
        pair.check()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("breaks", [_breaks_in_forward, _breaks_in_backward])
def test_faces_and_later_steps_are_unharmed_by_a_failed_pass(
    ranks: Ranks, stage: int, breaks: Callable[[nn.Module], RemovableHandle]
) -> None:
    ranks(2, _fails_then_goes_on, stage, breaks)


def _two_forwards_first(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    for backwards in ((0, 1), (1, 0), (0, 1)):
        losses = [loss_of(pair.model, pair.rank, part) for part in (10, 11)]
        for part in backwards:
            losses[part].backward()
            pair.backward_plain(lambda model, rank, step, part=part: loss_of(model, rank, 10 + part))
        pair.apply()
    pair.check()


@pytest.mark.parametrize("stage", STAGES)
def test_two_graphs_may_be_alive_at_once(ranks: Ranks, stage: int) -> None:
    ranks(2, _two_forwards_first, stage)


def _one_graph_twice(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    for _ in range(3):
        loss = loss_of(pair.model, pair.rank, pair.steps)
        loss.backward(retain_graph=True)
        loss.backward()
        for _ in range(2):
            pair.backward_plain()
        pair.apply()
    pair.check()


@pytest.mark.parametrize("stage", STAGES)
def test_backward_may_run_twice_over_a_retained_graph(ranks: Ranks, stage: int) -> None:
    ranks(2, _one_graph_twice, stage)
