"""Muon's steps: clipped, unscaled, skipped on all ranks alike; and what is no matrix is refused by name."""

import pytest
import torch
import torch.distributed as dist
from support.clear_error import clear_error
from support.matrices import MuonPair, groups_of, loss_of, sharded, vectors_of
from support.overflow import spoil
from support.pair import assert_same_bits, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import overlap
from overlap.optim import flat_optimizer

LIMIT = 0.05  # below the norms met here
SCALE = 1024.0  # a power of two: unscaling is exact


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.ndim > 1]


def _clips(stage: int) -> None:
    """Small momentum, so that what was clipped shows in directions later."""
    pair = MuonPair(stage=stage, options={"momentum": 0.5})
    pair.update.max_grad_norm = LIMIT
    for _ in range(4):
        pair.backward()
        norm = clip_grad_norm_(_matrices(pair.plain), LIMIT)
        pair.apply()
        assert norm > LIMIT
        assert float(pair.update.grad_norm) == pytest.approx(float(norm), rel=1e-5)
        assert float(pair.update.clipped_grad_norm) == pytest.approx(LIMIT, rel=1e-4)
    for param, twin in zip(_matrices(pair.model), _matrices(pair.plain), strict=True):
        torch.testing.assert_close(param.full_tensor(), twin, rtol=0, atol=4e-3)  # two units of bf16 of a step or so
    momentum = pair.update.state[pair.model.up.weight]["momentum_buffer"].full_tensor()
    (theirs,) = (pair.plain_update.state[leaf] for leaf, _ in pair.leaves[0] if leaf.shape == (37, 16))
    torch.testing.assert_close(momentum, theirs["momentum_buffer"], rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("stage", [1, 3])
def test_max_grad_norm_equals_torchs_clip_before_the_step(ranks: Ranks, stage: int) -> None:
    ranks(2, _clips, stage)


def _unscales() -> None:
    pair = MuonPair()
    for step in range(3):
        (loss_of(pair.model, pair.rank, step) * SCALE).backward()
        pair.hand_over()
        for grad in (param.grad for param in pair.plain.parameters()):
            grad /= SCALE
        pair.update.step(grad_scale=torch.tensor([1 / SCALE]))
        pair.plain_step()
        pair.forget()
    pair.check()


def test_grad_scale_multiplies_gradients(ranks: Ranks) -> None:
    ranks(2, _unscales)


def _everything(pair: MuonPair) -> dict[str, Tensor]:
    state = {
        f"{name} {key}": value.full_tensor().clone()
        for name, entry in pair.update.state_dict()["state"].items()
        for key, value in entry.items()
    }
    return {**whole(pair.model), **state}


def _skips(stage: int, max_grad_norm: float | None) -> None:
    pair = MuonPair(stage=stage, param_dtype=torch.bfloat16)
    pair.update.max_grad_norm = max_grad_norm
    pair.step()
    before = _everything(pair)
    loss = loss_of(pair.model, pair.rank, 1)
    loss.mul(float("inf")).backward()
    pair.update.step(skip=torch.ones(1))
    pair.update.zero_grad()
    assert_same_bits(_everything(pair), before)
    assert torch.equal(loss_of(pair.model, pair.rank, 1), loss), "compute sees the same weights, too"
    pair.backward()
    pair.update.step(skip=torch.zeros(1))
    after = _everything(pair)
    assert all(not torch.equal(value, before[name]) for name, value in after.items() if value.ndim > 1)


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("max_grad_norm", [None, LIMIT])
def test_a_skipped_step_leaves_weights_and_momentum_to_the_bit(
    ranks: Ranks, stage: int, max_grad_norm: float | None
) -> None:
    ranks(2, _skips, stage, max_grad_norm)


def _skips_alike(stage: int, *, late: bool) -> None:
    """One rank's overflow skips the step on all of them; a scaler is shared with an AdamW for the rest."""
    pair = MuonPair(stage=stage, options={"momentum": 0.5})
    scaler = overlap.LossScaler(SCALE, growth_interval=100)
    other = overlap.AdamW(vectors_of(pair.model), lr=1e-3)
    known, flat_optimizer.known_at_once = flat_optimizer.known_at_once, lambda device: not late
    try:
        for spoiled in (None, "up.weight", None, "experts", "few", None):
            scale = SCALE / 2**pair.update.skipped_steps
            scaler.scale(loss_of(pair.model, pair.rank, pair.steps)).backward()
            assert scaler.get_scale() == scale
            pair.hand_over()
            for grad in (param.grad for param in pair.plain.parameters()):
                grad /= scale
            if spoiled is not None:
                spoil(pair.model, spoiled)
            pair.update.step(scaler=scaler)
            scaler.step(other)
            if spoiled is None:
                pair.plain_step()
            assert bool(pair.update.skipped) == (spoiled is not None)
            pair.forget()
    finally:
        flat_optimizer.known_at_once = known
    mine, theirs = whole(pair.model), whole(pair.plain)
    for name, value in mine.items():
        assert value.ndim < 2 or torch.equal(value, theirs[name]), name
    assert (pair.update.skipped_steps, other.skipped_steps) == (3, 0)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks: Ranks, world: int, late: bool) -> None:
    ranks(world, _skips_alike, 3, late=late)


def _warns_by_number() -> None:
    pair = MuonPair()
    pair.update.max_grad_norm = 1.0
    pair.step()
    pair.backward()
    spoil(pair.model, "square.weight")
    if dist.get_rank() == 0:
        with pytest.warns(RuntimeWarning, match=r"update 2, in unit 'square'"):
            pair.update.step()
    else:
        pair.update.step()
    pair.update.max_grad_norm, pair.update.error_if_nonfinite = None, True
    with clear_error(overlap.StateError, "update 2", "square.weight"):
        pair.update.step()


def test_a_step_that_is_not_finite_is_named(ranks: Ranks) -> None:
    ranks(2, _warns_by_number)


REFUSED = {
    "lr": -1.0,
    "weight_decay": -0.1,
    "momentum": 1.0,
    "eps": 0.0,
    "ns_steps": 100,
    "ns_coefficients": (1.0, 2.0),
    "adjust_lr_fn": "rms",
    "ns_dtype": torch.float16,
    "max_grad_norm": 0.0,
}


def _refuses_values() -> None:
    model = sharded()
    for name, value in REFUSED.items():
        with clear_error(overlap.ConfigError, name, str(value)):
            overlap.Muon(groups_of(model), **{name: value})
    with clear_error(overlap.ConfigError, "parameter", "sharded", "(3, 2)"):
        overlap.Muon([nn.Parameter(torch.zeros(3, 2))])


def test_arguments_out_of_range_and_plain_parameters_are_refused(ranks: Ranks) -> None:
    ranks(1, _refuses_values)


def _refuses_vectors() -> None:
    model = sharded()
    with clear_error(overlap.ConfigError, "'up.bias'", "(37,)", "two dimensions", "overlap.AdamW"):
        overlap.Muon([model.up.weight, model.up.bias])
    with clear_error(overlap.ConfigError, "'experts'", "(4, 16, 8)", "stacked=True", "stacked=False"):
        overlap.Muon([model.experts])
    update = overlap.Muon([model.up.weight])
    with clear_error(overlap.ConfigError, "'norm.weight'"):
        update.add_param_group({"params": [model.norm.weight]})
    assert [len(group["params"]) for group in update.param_groups] == [1]


def test_what_is_no_matrix_is_refused_by_name(ranks: Ranks) -> None:
    ranks(2, _refuses_vectors)


def _sees_a_kernel() -> None:
    """Three dimensions may be a kernel: one matrix, [out, rest]."""
    model = sharded()
    update = overlap.Muon([model.experts], lr=1.0, weight_decay=0.0, momentum=0.0, stacked=False, ns_steps=12)
    before = whole(model)["experts"]
    loss_of(model, dist.get_rank(), 0).backward()
    update.step()
    step = (before - whole(model)["experts"]).flatten(1)
    torch.testing.assert_close(torch.linalg.svdvals(step), torch.ones(4), rtol=0, atol=0.3)


def test_three_dimensions_may_be_a_kernel(ranks: Ranks) -> None:
    ranks(2, _sees_a_kernel)


def _superseded() -> None:
    pair = MuonPair()
    pair.backward()
    overlap.AdamW([pair.model.up.weight])
    with clear_error(overlap.StateError, "optimizer Muon", "built"):
        pair.update.step()


def test_an_optimizer_whose_momentum_another_has_taken_is_refused(ranks: Ranks) -> None:
    ranks(2, _superseded)


def _closes() -> None:
    pair = MuonPair()

    def closure() -> Tensor:
        pair.update.zero_grad()
        loss = loss_of(pair.model, pair.rank, 0)
        loss.backward()
        return loss

    before = loss_of(pair.model, pair.rank, 0).detach()
    assert torch.equal(pair.update.step(closure).detach(), before)
    assert not torch.equal(loss_of(pair.model, pair.rank, 0).detach(), before)


def test_a_closure_gives_its_loss(ranks: Ranks) -> None:
    ranks(2, _closes)
