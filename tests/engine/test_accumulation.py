"""Micro-batches: accumulate locally and reduce once, or reduce each; both add up to the whole batch."""

from collections.abc import Callable

import pytest
import torch
from support.models import loss_of
from support.pair import Loss, Pair, Sharded, assert_same_bits, routed
from support.ranks import Ranks
from torch import Tensor, nn

STAGES = (0, 1, 2, 3)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-7}  # sums in another order


def _part(number: int, of: int = 3) -> Loss:
    """The loss of one of several micro-batches that make a batch."""
    return lambda model, rank, step: loss_of(model, rank, 100 * step + number) / of


def _equals_one_process(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    for parts in (1, 3, 2, 3):
        pair.step(*(_part(number, parts) for number in range(parts)))
        pair.check(f"after {parts} micro-batches")


@pytest.mark.parametrize("stage", STAGES)
def test_micro_batches_reduced_once_equal_one_process(ranks: Ranks, stage: int) -> None:
    ranks(2, _equals_one_process, stage)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: param.grad.full_tensor() for name, param in model.named_parameters()}


def _together(run: Sharded) -> None:
    (sum(_part(number)(run.model, run.rank, 0) for number in range(3))).backward()


def _reduced_once(run: Sharded) -> None:
    with run.model.no_sync():
        for number in range(2):
            _part(number)(run.model, run.rank, 0).backward()
    _part(2)(run.model, run.rank, 0).backward()


def _each_reduced(run: Sharded) -> None:
    for number in range(3):
        _part(number)(run.model, run.rank, 0).backward()


def _adds_up(stage: int) -> None:
    for way in (_reduced_once, _each_reduced):
        run, whole_batch = Sharded(stage=stage, poison=True), Sharded(stage=stage)
        for _ in range(2):
            way(run)
            _together(whole_batch)
            expected = _gradients(whole_batch.model)
            for name, grad in _gradients(run.model).items():
                torch.testing.assert_close(grad, expected[name], **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")
            for each in (run, whole_batch):
                each.update.zero_grad()


@pytest.mark.parametrize("stage", STAGES)
def test_both_ways_add_up_to_the_whole_batch(ranks: Ranks, stage: int) -> None:
    ranks(2, _adds_up, stage)


def _calls(run: Sharded, way: Callable[[], None]) -> dict[str, int]:
    counters = [comm.counter for comm in run.engine.comms.values()]
    counters.append(run.engine.group.control.communicator.counter)
    before = [counter.snapshot() for counter in counters]
    way()
    spent = [counter.snapshot() - old for counter, old in zip(counters, before, strict=True)]
    return {kind: calls for each in spent for kind, calls in each.calls.items() if calls}


def _communicates_only_gathers(stage: int) -> None:
    run = Sharded(stage=stage)
    for _ in range(2):
        run.step()

    def quiet() -> None:
        with run.model.no_sync():
            loss_of(run.model, run.rank, 0).backward()

    for _ in range(2):  # the first gathers after the update, the second agrees on a plan without that
        quiet()
    # Stage 3: the units, and the first block once more for backward.
    assert _calls(run, quiet) == ({"gather": len(run.engine.units) + 1} if stage == 3 else {})
    assert _calls(run, run.step).keys() >= {"control", "replicated"}


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_is_reduced_while_gradients_accumulate(ranks: Ranks, stage: int) -> None:
    ranks(2, _communicates_only_gathers, stage)


def _uses_a_block_once(stage: int) -> None:
    pair = Pair(stage=stage, poison=True)
    pair.step()
    for routes in (((0, 2), (0, 1, 2)), ((0, 1, 2), (0, 2)), ((0, 2), (2, 0))):
        block = [param.grad for param in pair.model.blocks[1].parameters()]
        pair.backward(*(routed(*route) for route in routes))
        used = any(1 in route for route in routes)
        assert all((param.grad is not None) == used for param in pair.model.blocks[1].parameters()), routes
        pair.apply()
        pair.check(f"after {routes}")
        assert block == [None] * len(block)


@pytest.mark.parametrize("stage", STAGES)
def test_a_block_may_be_used_in_some_micro_batches_only(ranks: Ranks, stage: int) -> None:
    ranks(2, _uses_a_block_once, stage)


def _switches_late(stage: int) -> None:
    """A hook in the middle of backward changes the setting; it counts from the next backward on."""
    run, plain = Sharded(stage=stage), Sharded(stage=stage)

    def backward(sync: bool, then: bool) -> None:
        run.model.set_requires_gradient_sync(sync)
        switch = run.model.blocks[1].register_full_backward_hook(lambda *_: run.model.set_requires_gradient_sync(then))
        loss_of(run.model, run.rank, 0).backward()
        switch.remove()
        assert run.engine.passes.requires_gradient_sync is then

    backward(sync=True, then=False)
    plain.backward()
    assert_same_bits(_gradients(run.model), _gradients(plain.model), "in a backward that started with reduction")
    run.update.zero_grad()
    backward(sync=False, then=True)
    assert all(param.grad is None for param in run.model.parameters())


@pytest.mark.parametrize("stage", STAGES)
def test_whether_to_reduce_is_decided_when_backward_starts(ranks: Ranks, stage: int) -> None:
    ranks(2, _switches_late, stage)


def _drops_some(stage: int) -> None:
    """The user drops the gradients of a few parameters; the others go on adding up."""
    pair = Pair(stage=stage, poison=True)
    for _ in range(2):
        for model in (pair.model, pair.plain):
            model.blocks[0].up.weight.grad = model.blocks[0].norm.bias.grad = model.head.bias.grad = None
        pair.backward()
    pair.apply()
    pair.check()


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_may_be_dropped_one_by_one(ranks: Ranks, stage: int) -> None:
    ranks(2, _drops_some, stage)


def _divides(stage: int) -> None:
    mean, total = (Sharded(stage=stage) for _ in range(2))
    total.model.set_gradient_divide_factor(1.0)
    for run in (mean, total):
        run.backward()
    doubled = {name: grad * 2 for name, grad in _gradients(mean.model).items()}
    assert_same_bits(_gradients(total.model), doubled)


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_are_divided_by_the_factor_instead_of_the_ranks(ranks: Ranks, stage: int) -> None:
    ranks(2, _divides, stage)
