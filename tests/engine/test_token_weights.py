"""Every token counts the same, however unevenly ranks and micro-batches hold them: as one process with all of them."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from support.models import VOCAB, seeded
from support.pair import assert_same_bits, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

import overlap

STAGES = (0, 1, 2, 3)
LIMIT = 0.05
# eps so large that a gradient of rounding noise does not become a step of size lr.
ADAM = {"lr": 1e-2, "eps": 1e-4}
STEPS, MICRO_BATCHES = 3, 3


def _batch(rank: int, step: int, micro: int = 0) -> Tensor:
    """Uneven: 2 to 11 tokens."""
    source = torch.Generator().manual_seed(10_000 * step + 100 * micro + rank)
    return torch.randint(VOCAB, (1, 3 + (5 * rank + 3 * step + 4 * micro) % 10), generator=source)


def _tokens(batch: Tensor) -> int:
    return batch.shape[1] - 1


def _sum_of_losses(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")


def _all(world: int, step: int, micro_batches: int = 1) -> Iterator[Tensor]:
    return (_batch(rank, step, micro) for rank in range(world) for micro in range(micro_batches))


def _alone(world: int, micro_batches: int = 1, max_norm: float | None = None) -> dict[str, Tensor]:
    """One process that has all tokens: the mean over tokens, one backward."""
    model = seeded()
    update = torch.optim.AdamW(model.parameters(), **ADAM)
    for step in range(STEPS):
        batches = list(_all(world, step, micro_batches))
        total = sum(map(_tokens, batches))
        (torch.stack([_sum_of_losses(model, batch) for batch in batches]).sum() / total).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        update.step()
        update.zero_grad()
    return whole(model)


def _assert_close(model: nn.Module, expected: dict[str, Tensor], when: str = "") -> None:
    for name, value in whole(model).items():
        torch.testing.assert_close(
            value, expected[name], rtol=0, atol=2e-6, msg=lambda text, n=name: f"{n} {when}: {text}"
        )


def _divides(shape: tuple[int, ...]) -> None:
    """The number of tokens is known before backward, and another one in each step."""
    world = dist.get_world_size()
    for stage in STAGES:
        model = shard_blocks(seeded(), stage=stage, poison=True, mesh=init_device_mesh("cpu", shape))
        update = overlap.AdamW(model.parameters(), **ADAM)
        for step in range(STEPS):
            model.set_gradient_divide_factor(sum(map(_tokens, _all(world, step))))
            _sum_of_losses(model, _batch(dist.get_rank(), step)).backward()
            update.step()
            update.zero_grad()
        _assert_close(model, _alone(world), f"at stage {stage} over {shape}")


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (4,), (2, 2)])
def test_the_divide_factor_is_what_the_sum_over_ranks_is_divided_by(ranks: Ranks, shape: tuple[int, ...]) -> None:
    ranks(torch.Size(shape).numel(), _divides, shape)


def _accumulates(stage: int, *, reduce_each: bool) -> None:
    """Many micro-batches are one batch, whatever each of them holds."""
    world, rank = dist.get_world_size(), dist.get_rank()
    model = shard_blocks(seeded(), stage=stage, poison=True)
    update = overlap.AdamW(model.parameters(), **ADAM)
    for step in range(STEPS):
        model.set_gradient_divide_factor(sum(map(_tokens, _all(world, step, MICRO_BATCHES))))
        for micro in range(MICRO_BATCHES):
            model.set_requires_gradient_sync(reduce_each or micro == MICRO_BATCHES - 1)
            _sum_of_losses(model, _batch(rank, step, micro)).backward()
        update.step()
        update.zero_grad()
    _assert_close(model, _alone(world, MICRO_BATCHES), f"at stage {stage}")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("reduce_each", [True, False])
def test_uneven_micro_batches_are_one_batch(ranks: Ranks, stage: int, reduce_each: bool) -> None:
    ranks(2, _accumulates, stage, reduce_each=reduce_each)


def _weighs_micro_batches() -> None:
    """The factor that holds when a micro-batch runs is the one it is divided by."""
    model, plain = shard_blocks(seeded()), seeded()
    factors, rank, world = (3.0, 7.0, 0.5), dist.get_rank(), dist.get_world_size()
    for micro, factor in enumerate(factors):
        model.set_gradient_divide_factor(factor)
        model.set_requires_gradient_sync(micro == len(factors) - 1)
        _sum_of_losses(model, _batch(rank, 0, micro)).backward()
        for each in range(world):
            (_sum_of_losses(plain, _batch(each, 0, micro)) / factor).backward()
    for name, param in model.named_parameters():
        torch.testing.assert_close(param.grad.full_tensor(), plain.get_parameter(name).grad, rtol=1e-5, atol=1e-5)


def test_the_factor_may_change_between_micro_batches(ranks: Ranks) -> None:
    ranks(2, _weighs_micro_batches)


def _counts_afterwards(stage: int, max_norm: float | None) -> dict[str, Tensor]:
    """The number is known after the last backward only: sum gradients, and divide in the update.

    model.set_gradient_divide_factor(1)
    ... backward of sums of losses ...
    tokens: on the device, this rank's
    dist.all_reduce(tokens)
    optimizer.step(grad_scale=1 / tokens)
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    model = shard_blocks(seeded(), stage=stage, poison=True)
    model.set_gradient_divide_factor(1)
    update = overlap.AdamW(model.parameters(), **ADAM, max_grad_norm=max_norm)
    for step in range(STEPS):
        tokens = torch.zeros(())
        for micro in range(MICRO_BATCHES):
            model.set_requires_gradient_sync(micro == MICRO_BATCHES - 1)
            batch = _batch(rank, step, micro)
            _sum_of_losses(model, batch).backward()
            tokens += _tokens(batch)
        dist.all_reduce(tokens)
        update.step(grad_scale=1 / tokens)
        update.zero_grad()
    _assert_close(model, _alone(world, MICRO_BATCHES, max_norm), f"at stage {stage}")
    return whole(model)


def _counts_at_all_stages(max_norm: float | None) -> None:
    results = [_counts_afterwards(stage, max_norm) for stage in STAGES]
    for stage, result in zip(STAGES, results, strict=True):
        assert_same_bits(result, results[0], f"at stage {stage}")


@pytest.mark.parametrize("max_norm", [None, LIMIT])
def test_tokens_may_be_counted_after_backward(ranks: Ranks, max_norm: float | None) -> None:
    ranks(2, _counts_at_all_stages, max_norm)


def _with_a_loss_scale() -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    model = shard_blocks(seeded())
    model.set_gradient_divide_factor(1)
    update, scaler = overlap.AdamW(model.parameters(), **ADAM, max_grad_norm=LIMIT), overlap.LossScaler(1024.0)
    for step in range(STEPS):
        batch = _batch(rank, step)
        scaler.scale(_sum_of_losses(model, batch)).backward()
        tokens = torch.tensor(float(_tokens(batch)))
        dist.all_reduce(tokens)
        update.step(grad_scale=1 / tokens, scaler=scaler)
        update.zero_grad()
    _assert_close(model, _alone(world, max_norm=LIMIT))


def test_token_counts_and_a_loss_scale_go_together(ranks: Ranks) -> None:
    ranks(2, _with_a_loss_scale)
