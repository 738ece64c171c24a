"""A pass that fails anywhere leaves an engine that trains as if it had not been: no gradient, no memory."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.chain import Block, Chain, chain, data
from support.counting import live_bytes
from support.ranks import Ranks
from support.twins import Twins, gradients
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import overlap

STAGES = (0, 1, 2, 3)


class _BrokenError(RuntimeError):
    """As an out-of-memory error: it may come from anywhere."""


class Fragile(Block):
    """Fails where it is told to."""

    fails_in = ""
    recomputing = False

    def forward(self, x: Tensor) -> Tensor:
        if Fragile.fails_in == "forward":
            raise _BrokenError
        if Fragile.fails_in == "recomputation" and self.recomputing:
            raise _BrokenError
        out = super().forward(x)
        if Fragile.fails_in == "backward" and out.requires_grad:
            out.register_hook(_break)
        return out


def _break(*_: object) -> None:
    raise _BrokenError


class Recomputed(Chain):
    """Fragile blocks among others; all are recomputed."""

    def __init__(self) -> None:
        super().__init__(Block)
        self.blocks[1], self.blocks[3] = Fragile(), Fragile()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self._run(block, x)
        return x

    def _run(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(self._block, block, x, use_reentrant=False) if torch.is_grad_enabled() else block(x)

    def _block(self, block: nn.Module, x: Tensor) -> Tensor:
        Fragile.recomputing = self.backward_runs
        return block(x)

    backward_runs = False


def _loss(model: Any, rank: int, step: int) -> Tensor:
    model.backward_runs = False
    loss = model(data(step, rank).requires_grad_()).square().mean()
    model.backward_runs = True
    return loss


PLACES = ("forward", "backward", "recomputation", "loss")


def _fail(twins: Twins, place: str) -> None:
    Fragile.fails_in = place
    try:
        with pytest.raises(_BrokenError):
            _pass(twins, place)
    finally:
        Fragile.fails_in = ""


def _pass(twins: Twins, place: str) -> None:
    loss = twins.loss(twins.model, twins.rank, 99)
    if place == "loss":
        raise _BrokenError
    loss.backward()


def _recovers(stage: int, place: str) -> None:
    twins = Twins(Recomputed, _loss, optimizer=partial(torch.optim.SGD, lr=0.1), stage=stage, unit="blocks.*")
    for _ in range(3):  # before a plan, with one, and once more
        _fail(twins, place)
        assert all(isinstance(param, DTensor) for param in twins.model.parameters())
        assert not gradients(twins.model)
        for _ in range(2):
            twins.backward()
            twins.check_gradients(f"after a failure in {place}", bits=False)
            twins.apply()
    twins.check(bits=False)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stage", STAGES)
def test_the_next_steps_are_right(ranks: Ranks, stage: int, place: str) -> None:
    ranks(2, _recovers, stage, place)


def _keeps_nothing(stage: int) -> None:
    twins = Twins(Recomputed, _loss, stage=stage, unit="blocks.*")
    for place in PLACES:
        twins.step()
        _fail(twins, place)
        twins.step()
        gc.collect()  # of tests before
        before = live_bytes(), overlap.engine_of(twins.model).memory().on_top
        for _ in range(5):
            _fail(twins, place)
        twins.step()
        assert (live_bytes(), overlap.engine_of(twins.model).memory().on_top) == before, place


@pytest.mark.parametrize("stage", STAGES)
def test_failures_leave_no_memory_behind(ranks: Ranks, stage: int) -> None:
    ranks(2, _keeps_nothing, stage)


def _micro_batch_fails(stage: int, place: str) -> None:
    """The failed micro-batch and those accumulated before it are dropped together."""
    twins = Twins(Recomputed, _loss, optimizer=_ours, stage=stage, unit="blocks.*")
    twins.step()
    for _ in range(2):
        with twins.model.no_sync():
            twins.loss(twins.model, twins.rank, 50).backward()
            _fail(twins, place)
        twins.update.zero_grad()
        twins.backward()
        twins.check_gradients(f"after a micro-batch that failed in {place}", bits=False)
        twins.apply()


def _ours(params: Any) -> torch.optim.Optimizer:
    params = list(params)
    return (overlap.AdamW if isinstance(params[0], DTensor) else torch.optim.AdamW)(params, lr=1e-3, eps=1e-3)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stage", STAGES)
def test_a_failed_micro_batch_can_be_dropped(ranks: Ranks, stage: int, place: str) -> None:
    ranks(2, _micro_batch_fails, stage, place)


def _evaluation_fails(stage: int) -> None:
    twins = Twins(Recomputed, _loss, stage=stage, unit="blocks.*")
    for _ in range(3):
        Fragile.fails_in = "forward"
        try:
            with pytest.raises(_BrokenError), torch.no_grad():
                twins.model(data())
        finally:
            Fragile.fails_in = ""
        with torch.no_grad():
            assert torch.equal(twins.model(data()), twins.plain(data()))
        twins.step()
    twins.check(bits=False)


@pytest.mark.parametrize("stage", STAGES)
def test_a_failed_evaluation_is_forgotten(ranks: Ranks, stage: int) -> None:
    ranks(2, _evaluation_fails, stage)


def _plain_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank)).square().mean()


def _interrupted(stage: int, error: type[BaseException]) -> None:
    """Whatever ends the pass, also what is no Exception."""
    twins = Twins(chain, _plain_loss, stage=stage, unit="blocks.*")
    for _ in range(2):
        handle = twins.model.blocks[2].register_forward_pre_hook(_raiser(error))
        with pytest.raises(error):
            twins.model(data())
        handle.remove()
        twins.step()
    twins.check()


def _raiser(error: type[BaseException]) -> Callable[..., None]:
    def raise_it(*_: object) -> None:
        raise error

    return raise_it


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
@pytest.mark.parametrize("stage", [1, 3])
def test_any_kind_of_interruption(ranks: Ranks, stage: int, error: type[BaseException]) -> None:
    ranks(2, _interrupted, stage, error)
