"""How long full parameters stay: options of a unit, changes between passes, and ``unshard`` by hand."""

from collections.abc import Callable

import pytest
import torch
from support.chain import BLOCKS, Chain, chain, close, data, sharded_chain, twin_gradients
from support.clear_error import clear_error
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import overlap

STAGES = (0, 1, 2, 3)


def _loss(net: nn.Module, step: int = 0, rank: int | None = None) -> Tensor:
    return net(data(step, rank)).square().mean()


class _Both:
    """A sharded chain and its twin, trained alike; counts the gathers of each step."""

    def __init__(self, **options: object) -> None:
        self.model, self.twin = sharded_chain(**options), chain()
        self.params = list(self.model.parameters())
        self.updates = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (self.model, self.twin)]
        self.steps = 0

    @property
    def engine(self) -> overlap.Engine:
        return overlap.engine_of(self.model)

    def gathers(self) -> int:
        return self.engine.comms["gather"].counter.snapshot().calls.get("gather", 0)

    def step(self, micros: int = 1, before: Callable[[], None] = lambda: None) -> int:
        """One optimizer step; how many gathers it took."""
        start = self.gathers()
        for micro in range(micros):
            before()
            self.model.set_requires_gradient_sync(micro == micros - 1)
            _loss(self.model, 10 * self.steps + micro).backward()
            twin_gradients(self.twin, lambda net, rank, n=10 * self.steps + micro: _loss(net, n, rank))
        assert close(self.params, self.twin.parameters()), self.steps
        for update in self.updates:
            update.step()
            update.zero_grad()
        self.steps += 1
        return self.gathers() - start


def _follows_setters() -> None:
    both = _Both()
    both.step()
    ring = both.step()
    assert ring == 2 * BLOCKS - 2 == both.step()  # two slots: the last two blocks are still there for backward
    both.model.set_reshard_after_forward(False)
    both.step()
    assert both.step() == BLOCKS
    both.model.blocks[0].set_reshard_after_forward(True, recurse=False)
    both.step()
    assert both.step() == BLOCKS  # a ring of one unit: nobody else wants its slot
    both.model.set_reshard_after_forward(True)
    both.step()
    assert both.step() == ring
    both.model.set_reshard_after_backward(False)
    both.step(3)
    assert both.step(3) == BLOCKS  # once per update, not per micro-batch
    both.model.set_reshard_after_backward(True)
    both.step()
    assert both.step() == ring
    assert both.engine.memory().predicted == both.engine.memory().allocated


def test_setters_change_what_is_gathered_and_nothing_else(ranks: Ranks) -> None:
    ranks(2, _follows_setters)


def _prefetches() -> None:
    both = _Both()
    both.step()
    model = both.model
    model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1], model.blocks[2]])
    model.set_modules_to_backward_prefetch([model.blocks[1]])
    both.step()
    both.step()
    assert both.engine.plan.prefetch == 2
    with clear_error(overlap.ConfigError, "prefetch", "Linear"):
        model.set_modules_to_forward_prefetch([nn.Linear(2, 2)])


def test_lists_of_modules_set_how_far_ahead_is_gathered(ranks: Ranks) -> None:
    ranks(2, _prefetches)


def _by_hand(stage: int) -> None:
    both = _Both(stage=stage)
    both.step()
    block, twin = both.model.blocks[1], both.twin.blocks[1]
    for async_op in (False, True):
        handle = block.unshard(async_op)
        assert (handle is None) == (not async_op)
        if handle is not None:
            handle.wait()
            handle.wait()
        weight = block.linear.weight
        assert not isinstance(weight, DTensor)
        torch.testing.assert_close(weight, twin.linear.weight)
        torch.testing.assert_close(block.linear(data()), twin.linear(data()))  # not through any engine
        block.reshard()
        assert isinstance(block.linear.weight, DTensor)
        both.step()
    block.unshard()
    both.step()
    both.step()  # held over an update
    block.reshard()
    both.step()
    assert close(both.model.parameters(), both.twin.parameters(), of="data")


@pytest.mark.parametrize("stage", STAGES)
def test_unshard_shows_full_parameters_until_reshard(ranks: Ranks, stage: int) -> None:
    ranks(2, _by_hand, stage)


def _saves_a_gather() -> None:
    """Unsharding the first block ahead of the data moves its gather, and adds none."""
    both = _Both()

    def ahead() -> None:
        both.model.blocks[0].unshard(async_op=True)

    for _ in range(3):
        both.step(before=ahead)
        both.model.blocks[0].reshard()
    counts = [both.step(before=ahead) for _ in range(2)]
    assert counts == [2 * BLOCKS - 1 - 2] * 2
    assert both.engine.deviations == 0


def test_a_gather_by_hand_is_not_done_twice(ranks: Ranks) -> None:
    ranks(2, _saves_a_gather)


def _generates() -> None:
    """Everything held: decoding gathers nothing until weights change."""
    both = _Both()
    both.step()
    for block in both.model.blocks:
        block.unshard()
    for block, twin in zip(both.model.blocks, both.twin.blocks, strict=True):  # none lost its memory to a later one
        torch.testing.assert_close(block.linear.weight, twin.linear.weight)
    start = both.gathers()
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(both.model(data()), both.twin(data()))
    assert both.gathers() == start
    for block in both.model.blocks:
        block.reshard()
    both.step()


def test_a_held_model_decodes_without_gathers(ranks: Ranks) -> None:
    ranks(2, _generates)


class _Meddler(nn.Module):
    """Does something with its engine in the middle of a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = chain()
        self.act: Callable[[Chain], None] = lambda chain: None

    def forward(self, x: Tensor) -> Tensor:
        self.act(self.inner)
        return self.inner(x)


def _edit(net: Chain) -> None:
    with torch.no_grad():
        net.blocks[0].linear.weight.mul_(2)


class _Editing(nn.Linear):
    """Normalises its weight when it is called, as one does in plain torch."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.div_(self.weight.norm())
        return super().forward(x)


def _refuses() -> None:
    model = overlap.shard(_Meddler(), unit="inner.blocks.*", replicate_max_numel=16)
    for act, word in (
        (lambda net: net.blocks[0].unshard(), "unshard()"),
        (lambda net: net.blocks[0].reshard(), "reshard()"),
        (lambda net: net.blocks[0].set_reshard_after_forward(False), "outside of forward"),
    ):
        model.act = act
        with clear_error(overlap.StateError, word, "outside of forward"):
            model(data())
    model.act = lambda net: None
    model(data()).sum().backward()
    model.inner.blocks[0].unshard()
    _edit(model.inner)
    with clear_error(overlap.StateError, "blocks.0.linear.weight", "unedited", "summon_full_params"):
        model.inner.blocks[0].reshard()
    model(data()).sum().backward()


def test_what_would_be_wrong_or_lost_is_refused(ranks: Ranks) -> None:
    ranks(2, _refuses)


def _refuses_edits(stage: int) -> None:
    model = overlap.shard(nn.Sequential(_Editing(16, 16), nn.Linear(16, 16)), unit="*", stage=stage)
    for _ in range(2):  # and leaves the model as it was
        with clear_error(overlap.StateError, "0.weight", "unedited"):
            model(data())
    assert all(isinstance(param, DTensor) for param in model.parameters())


@pytest.mark.parametrize("stage", STAGES)
def test_parameters_edited_inside_forward_are_refused(ranks: Ranks, stage: int) -> None:
    ranks(2, _refuses_edits, stage)
