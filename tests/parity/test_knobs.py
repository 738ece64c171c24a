"""No option but dtypes changes a gradient by a bit, in whatever combination; the number of ranks by rounding only."""

from functools import cache
from typing import Any

import pytest
import torch
from support.covering import covering
from support.models import SMALL, loss_of, seeded
from support.pair import Sharded, assert_same_bits
from support.ranks import Ranks
from support.twins import gradients
from torch import Tensor

import overlap

KNOBS: dict[str, tuple[Any, ...]] = {
    "stage": (0, 1, 2, 3),
    "prefetch": (1, 2, 4),
    "bucket_bytes": (1, 3000, 1 << 20),
    "lanes": ("auto", "inline"),
    "reshard_after_forward": (True, False),
    "replicate_max_numel": (0, SMALL, 1 << 20),
    "timeline": (False, True),
    "poison": (False, True),
    "nvtx": (False, True),
}
COMBINATIONS = covering(KNOBS, seed="knobs")


def _gradients(dtype: torch.dtype | None, options: dict[str, Any]) -> list[dict[str, Tensor]]:
    """Of three steps: one recorded, two planned."""
    run, found = Sharded(param_dtype=dtype, **options), []
    for _ in range(3):
        run.backward()
        found.append(gradients(run.model))
        run.apply()
    return found


@cache
def _plain(ranks: Ranks, dtype: torch.dtype | None) -> list[dict[str, Tensor]]:
    return ranks(3, _gradients, dtype, {})[0]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("options", COMBINATIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_any_combination_gives_the_same_gradients(
    ranks: Ranks, options: dict[str, Any], dtype: torch.dtype | None
) -> None:
    for step, (mine, plain) in enumerate(
        zip(ranks(3, _gradients, dtype, options)[0], _plain(ranks, dtype), strict=True)
    ):
        assert_same_bits(mine, plain, f"in step {step}")


def _norm_of_the_batch(world: int) -> float:
    """12 samples, however many ranks share them."""
    model = overlap.shard(seeded(), unit="blocks.*", replicate_max_numel=SMALL)
    mine = range(torch.distributed.get_rank(), 12, world)
    sum(loss_of(model, sample, 0) for sample in mine).div(len(mine)).backward()
    return overlap.clip_grad_norm_(model.parameters(), 1e9).item()


def test_the_gradient_norm_depends_on_the_number_of_ranks_by_rounding_only(ranks: Ranks) -> None:
    norms = [norm for world in (1, 2, 3, 4) for norm in ranks(world, _norm_of_the_batch, world)]
    assert norms == pytest.approx(norms[:1] * len(norms), rel=4 * torch.finfo(torch.float32).eps)
