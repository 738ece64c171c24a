"""Curves of all stages are one curve, where other engines have drifted apart: tied weights, norms, bf16."""

from functools import partial
from typing import Any

import pytest
import torch
from support.models import loss_of
from support.pair import Sharded, assert_same_bits, whole
from support.ranks import Ranks
from torch import Tensor

import overlap

ADAMW = partial(overlap.AdamW, lr=1e-2)


def _curve(steps: int, stage: int, **options: Any) -> tuple[list[float], dict[str, Tensor]]:
    run, losses = Sharded(stage=stage, optimizer=ADAMW, **options), []
    for step in range(steps):
        losses.append(loss_of(run.model, run.rank, step).item())
        run.step()
    return losses, whole(run.model)


def _tied(stage: int) -> tuple[list[float], dict[str, Tensor]]:
    return _curve(20, stage, traits={"tied": True})


def test_tied_embeddings_and_norms_train_alike_at_all_stages(ranks: Ranks) -> None:
    curves = [ranks(2, _tied, stage)[0] for stage in (0, 1, 2, 3)]
    for losses, params in curves[1:]:
        assert losses == curves[0][0]
        assert_same_bits(params, curves[0][1])
    assert curves[0][0][-1] < curves[0][0][0], "it does train"


def _bf16(stage: int, reduce_dtype: torch.dtype) -> tuple[list[float], dict[str, Tensor]]:
    return _curve(4, stage, param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)


def test_stages_0_and_1_agree_in_bf16(ranks: Ranks) -> None:
    curves = [ranks(2, _bf16, stage, torch.float32)[0] for stage in (0, 1)]
    assert curves[0][0] == curves[1][0]
    assert_same_bits(curves[0][1], curves[1][1])


def test_a_bf16_wire_costs_stage_0_one_rounding_more(ranks: Ranks) -> None:
    """An all-reduce sends the sum back in bf16; a reduce-scatter leaves it where it was added up, in fp32."""
    curves = [ranks(2, _bf16, stage, torch.bfloat16)[0] for stage in (0, 1)]
    assert curves[0][0] == pytest.approx(curves[1][0], rel=2**-8)


def _never_clips(stage: int) -> None:
    """Gradients of norm 50 and more: without a limit the update is that of one process."""
    run = Sharded(stage=stage, optimizer=partial(overlap.AdamW, lr=1e-2, eps=1.0))  # eps shows the size of gradients
    plain = Sharded(stage=0, optimizer=partial(torch.optim.AdamW, lr=1e-2, eps=1.0))
    for each in (run, plain):
        (1000 * loss_of(each.model, each.rank, 0)).backward()
    before = {name: param.grad.full_tensor().clone() for name, param in run.model.named_parameters()}
    assert sum(grad.square().sum() for grad in before.values()).sqrt() > 50
    for each in (run, plain):
        each.update.step()
    for name, param in run.model.named_parameters():
        assert torch.equal(param.grad.full_tensor(), before[name]), name
    mine, theirs = whole(run.model), whole(plain.model)
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_nothing_is_clipped_unless_asked(ranks: Ranks, stage: int) -> None:
    ranks(2, _never_clips, stage)
