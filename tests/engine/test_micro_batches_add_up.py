"""However a batch is cut into micro-batches, and whenever they are reduced: one batch, in every step from the first."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from support.chain import WIDTH, Block, chain, data, sharded_chain
from support.pair import assert_same_bits, whole
from support.ranks import Ranks
from support.twins import gradients
from torch import Tensor, nn

import overlap

STAGES = (0, 1, 2, 3)
ROWS = 20  # divides by 1, 2, 4 and 5


def _batch(step: int, rank: int | None = None) -> Tensor:
    return torch.cat([data(100 * step + part, rank) for part in range(ROWS // 2)])[:ROWS]


def _backward(model: nn.Module, step: int, parts: int, way: str) -> None:
    """Mean over the rows of this rank, in so many micro-batches."""
    for number, rows in enumerate(_batch(step).chunk(parts)):
        model.set_requires_gradient_sync(way == "each" or number == parts - 1)
        (model(rows).square().mean() / parts).backward()


def _trained(stage: int, parts: int, way: str, steps: int) -> list[dict[str, Tensor]]:
    model = sharded_chain(stage=stage)
    update = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    after = []
    for step in range(steps):
        _backward(model, step, parts, way)
        update.step()
        update.zero_grad()
        after.append(whole(model))
    return after


def _alone(world: int, steps: int) -> list[dict[str, Tensor]]:
    model = chain()
    update = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    after = []
    for step in range(steps):
        model(torch.cat([_batch(step, rank) for rank in range(world)])).square().mean().backward()
        update.step()
        update.zero_grad()
        after.append(whole(model))
    return after


def _adds_up(stage: int, way: str) -> None:
    """After every global step, the first ones apart: ranks agree to the bit, and with one process."""
    expected = _alone(dist.get_world_size(), 3)
    for parts in (1, 2, 4, 5):
        for step, (mine, theirs) in enumerate(zip(_trained(stage, parts, way, 3), expected, strict=True)):
            for name, value in mine.items():
                torch.testing.assert_close(
                    value, theirs[name], rtol=1e-5, atol=1e-6, msg=lambda m, w=(parts, step, name): f"{w}: {m}"
                )
                everyone = [torch.empty_like(value) for _ in range(dist.get_world_size())]
                dist.all_gather(everyone, value)
                assert all(torch.equal(value, other) for other in everyone), (parts, step, name)


@pytest.mark.parametrize("way", ["each", "last"])
@pytest.mark.parametrize("stage", STAGES)
def test_micro_batches_equal_the_whole_batch_in_every_step(ranks: Ranks, stage: int, way: str) -> None:
    ranks(2, _adds_up, stage, way)


def _four_backwards(stage: int, build: Callable[..., torch.optim.Optimizer]) -> None:
    """Several backwards for one step, without a context and out of the order of their forwards."""
    model, summed = sharded_chain(stage=stage), sharded_chain(stage=stage)
    updates = [build(net.parameters()) for net in (model, summed)]
    for step in range(3):
        losses = [model(data(10 * step + part)).square().mean() for part in range(4)]
        for number in (1, 0, 3, 2):
            losses[number].backward()
        sum(summed(data(10 * step + part)).square().mean() for part in range(4)).backward()
        for name, grad in gradients(model).items():
            torch.testing.assert_close(grad, gradients(summed)[name], rtol=1e-5, atol=1e-7)
        for update in updates:
            update.step()
            update.zero_grad()
    for name, value in whole(model).items():
        torch.testing.assert_close(value, whole(summed)[name], rtol=1e-5, atol=1e-6)


SGD, ADAMW = partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(overlap.AdamW, lr=1e-2, eps=1e-4)


@pytest.mark.parametrize("build", [SGD, ADAMW], ids=["sgd", "overlap"])
@pytest.mark.parametrize("stage", STAGES)
def test_several_backwards_before_a_step_add_up(
    ranks: Ranks, stage: int, build: Callable[..., torch.optim.Optimizer]
) -> None:
    ranks(2, _four_backwards, stage, build)


def _weighted(stage: int) -> None:
    """Micro-batches and ranks of different numbers of tokens, each token worth the same: the factor is the user's."""
    counts = [[1, 5], [4, 2]][dist.get_rank()]  # of this rank's two micro-batches; 12 in all
    model, alone = sharded_chain(stage=stage), chain()
    model.set_gradient_divide_factor(12 * WIDTH)
    for number, count in enumerate(counts):
        model.set_requires_gradient_sync(number == 1)
        model(_batch(number)[:count]).square().sum().backward()
    tokens = [_batch(n, rank)[:count] for rank, row in enumerate([[1, 5], [4, 2]]) for n, count in enumerate(row)]
    alone(torch.cat(tokens)).square().mean().backward()
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, alone.get_parameter(name).grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("stage", STAGES)
def test_tokens_count_alike_wherever_they_are(ranks: Ranks, stage: int) -> None:
    ranks(2, _weighted, stage)


class Slope(Block):
    """Its weight's gradient is 1e-3 in every element, whatever its input."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear.weight
        return x + (weight * torch.full_like(weight, 1e-3)).sum().to(x.dtype)


def _many_small_ones(stage: int, dtype: torch.dtype | None) -> None:
    small = torch.tensor(1e-3, dtype=dtype).double().item()  # bf16 has its own idea of a thousandth
    for way in ("each", "last"):
        model = overlap.fully_shard(Slope(), stage=stage, param_dtype=dtype, replicate_max_numel=WIDTH)
        for number in range(256):
            model.set_requires_gradient_sync(way == "each" or number == 255)
            model(torch.zeros(1)).sum().backward()
        assert (gradients(model)["linear.weight"] - 256 * small).abs().max() < 1e-4, way


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stage", STAGES)
def test_256_small_gradients_are_not_lost(ranks: Ranks, stage: int, dtype: torch.dtype | None) -> None:
    ranks(2, _many_small_ones, stage, dtype)


def _repeats(stage: int) -> None:
    """The same program gives the same bits."""
    assert_same_bits(_trained(stage, 4, "last", 2)[-1], _trained(stage, 4, "last", 2)[-1])


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_run_gives_the_same_bits(ranks: Ranks, stage: int) -> None:
    ranks(3, _repeats, stage)
