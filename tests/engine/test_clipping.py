"""Clipping: torch's function and ours agree with one process."""

import pytest
import torch
from support.clear_error import clear_error
from support.models import loss_of, seeded
from support.pair import Pair, assert_same_bits, shard_blocks
from support.ranks import Ranks
from torch import Tensor
from torch.distributed.tensor import DTensor

import overlap

TOLERANCE = 4 * torch.finfo(torch.float32).eps  # a sum of squares in another order


def _norm(value: Tensor) -> float:
    return float(value.full_tensor() if isinstance(value, DTensor) else value)


def _gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    grads = {name: param.grad for name, param in model.named_parameters()}
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in grads.items()}


def _clips_alike(stage: int, max_norm: float, clip_name: str) -> None:
    pair = Pair(stage=stage)
    clip = overlap.clip_grad_norm_ if clip_name == "overlap" else torch.nn.utils.clip_grad_norm_
    for _ in range(2):
        pair.step()
    pair.backward(loss_of)
    expected = torch.nn.utils.clip_grad_norm_(pair.plain.parameters(), max_norm)
    assert expected > max_norm
    norm = clip(pair.model.parameters(), max_norm)
    assert _norm(norm) == pytest.approx(float(expected), rel=TOLERANCE)
    for name, grad in _gradients(pair.model).items():
        torch.testing.assert_close(grad, pair.plain.get_parameter(name).grad, rtol=2 * TOLERANCE, atol=0)


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("clip", ["overlap", "torch"])
def test_norm_and_clipped_gradients_equal_one_process(ranks: Ranks, stage: int, clip: str) -> None:
    ranks(2, _clips_alike, stage, 0.05, clip)


def _leaves_small_gradients_alone() -> None:
    pair = Pair()
    pair.backward(loss_of)
    before = {name: grad.clone() for name, grad in _gradients(pair.model).items()}
    overlap.clip_grad_norm_(pair.model.parameters(), 1e6)
    assert_same_bits(_gradients(pair.model), before)


def test_gradients_below_the_limit_keep_their_bits(ranks: Ranks) -> None:
    ranks(3, _leaves_small_gradients_alone)


def _replaced(pair: Pair) -> None:
    """The user puts other tensors where gradients are."""
    for model in (pair.model, pair.plain):
        for param in model.parameters():
            param.grad = param.grad * 3


def _clips_replaced_gradients() -> None:
    pair = Pair()
    pair.backward(loss_of)
    _replaced(pair)
    expected = torch.nn.utils.clip_grad_norm_(pair.plain.parameters(), 1e6)
    assert float(overlap.clip_grad_norm_(pair.model.parameters(), 1e6)) == pytest.approx(float(expected), rel=1e-6)
    pair.apply()
    pair.check()


def test_gradients_that_the_user_replaced_are_the_ones_that_count(ranks: Ranks) -> None:
    ranks(2, _clips_replaced_gradients)


def _refuses_nonfinite() -> None:
    model = shard_blocks(seeded())
    loss = loss_of(model, 0, 0) * (float("nan") if torch.distributed.get_rank() == 1 else 1.0)
    loss.backward()
    before = {name: grad.clone() for name, grad in _gradients(model).items()}
    with clear_error(overlap.StateError, "gradient norm", "nan"):
        overlap.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    for name, grad in _gradients(model).items():
        torch.testing.assert_close(grad, before[name], rtol=0, atol=0, equal_nan=True)


def test_a_norm_that_is_not_finite_can_be_refused_on_all_ranks(ranks: Ranks) -> None:
    ranks(2, _refuses_nonfinite)
