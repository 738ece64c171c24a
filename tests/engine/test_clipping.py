"""Clipping: torch's function and ours agree with one process, for any stage, number of ranks and kind of norm."""

from functools import partial

import pytest
import torch
from support.clear_error import clear_error
from support.models import loss_of, seeded
from support.overflow import INF, spoil
from support.pair import Pair, Sharded, assert_same_bits, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as fsdp2_shard
from torch.distributed.tensor import DTensor

import overlap

TOLERANCE = 4 * torch.finfo(torch.float32).eps  # a sum of squares in another order
LIMIT = 0.05  # below the norms met here
STAGES = (0, 1, 2, 3)


def _norm(value: Tensor) -> float:
    return float(value.full_tensor() if isinstance(value, DTensor) else value)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
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


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("clip", ["overlap", "torch"])
def test_norm_and_clipped_gradients_equal_one_process(ranks: Ranks, stage: int, clip: str) -> None:
    ranks(2, _clips_alike, stage, LIMIT, clip)


def _norm_over(tokens_of: tuple[int, ...], stage: int, shape: tuple[int, ...]) -> tuple[float, float]:
    """Norm before and after clipping; the batch is that of all of ``tokens_of`` on every rank."""
    mesh = init_device_mesh("cpu", shape)
    model = shard_blocks(seeded(), stage=stage, mesh=mesh)
    torch.stack([loss_of(model, rank, 0) for rank in tokens_of]).mean().backward()
    before = overlap.clip_grad_norm_(model.parameters(), LIMIT)
    return float(before), float(overlap.grad_norm(model.parameters()))


def test_the_norm_is_the_same_for_every_stage_mesh_and_number_of_ranks(ranks: Ranks) -> None:
    plain = seeded()
    torch.stack([loss_of(plain, rank, 0) for rank in range(3)]).mean().backward()
    expected = float(torch.nn.utils.clip_grad_norm_(plain.parameters(), LIMIT))
    for shape in ((1,), (2,), (3,), (4,), (2, 2)):
        for stage in STAGES:
            world = shape[0] * shape[-1] if len(shape) == 2 else shape[0]
            found = ranks(world, _norm_over, (0, 1, 2), stage, shape)
            assert len(set(found)) == 1, f"ranks differ at stage {stage} over {shape}: {found}"
            assert found[0] == (pytest.approx(expected, rel=TOLERANCE), pytest.approx(LIMIT, rel=1e-4))


def _kinds_of_norm() -> None:
    for norm_type in (1.0, 3, INF, "inf"):
        pair = Pair()
        pair.backward(loss_of)
        found = overlap.grad_norm(pair.model.parameters(), norm_type)
        norm = overlap.clip_grad_norm_(pair.model.parameters(), 0.01, norm_type)
        expected = torch.nn.utils.clip_grad_norm_(pair.plain.parameters(), 0.01, norm_type)
        assert float(norm) == float(found) == pytest.approx(float(expected), rel=1e-5)
        for name, grad in _gradients(pair.model).items():
            torch.testing.assert_close(grad, pair.plain.get_parameter(name).grad, rtol=1e-5, atol=0)


def test_other_norms_equal_one_process(ranks: Ranks) -> None:
    for world in (1, 3):
        ranks(world, _kinds_of_norm)


def _leaves_small_gradients_alone() -> None:
    pair = Pair()
    pair.backward(loss_of)
    before = {name: grad.clone() for name, grad in _gradients(pair.model).items()}
    overlap.clip_grad_norm_(pair.model.parameters(), 1e6)
    assert_same_bits(_gradients(pair.model), before)


def test_gradients_below_the_limit_keep_their_bits(ranks: Ranks) -> None:
    ranks(3, _leaves_small_gradients_alone)


def _updates_by_the_clipped_norm() -> None:
    """What clipping promises, seen from outside: plain SGD moves by lr times the smaller of norm and limit."""
    for limit in (LIMIT, 50.0):
        pair = Pair()
        pair.backward(loss_of)
        before = whole(pair.model)
        norm = float(overlap.clip_grad_norm_(pair.model.parameters(), limit))
        torch.optim.SGD(pair.model.parameters(), lr=0.5).step()
        moved = [(value - before[name]).flatten() for name, value in whole(pair.model).items()]
        length = float(torch.cat(moved).double().norm())
        assert length == pytest.approx(0.5 * min(norm, limit), rel=1e-4)


def test_sgd_moves_by_the_smaller_of_norm_and_limit(ranks: Ranks) -> None:
    ranks(2, _updates_by_the_clipped_norm)


def _large(model: nn.Module, rank: int, step: int) -> Tensor:
    return 100 * loss_of(model, rank, step)


def _off_by_default() -> None:
    for build in (partial(torch.optim.SGD, lr=0.1), partial(overlap.AdamW, lr=0.1)):
        run = Sharded(optimizer=build)
        run.backward(_large)
        before = {name: grad.clone() for name, grad in _gradients(run.model).items()}
        assert float(overlap.grad_norm(run.model.parameters())) > 50
        run.update.step()
        assert_same_bits(_gradients(run.model), before)
    assert run.update.grad_norm is None
    pair = Pair()
    pair.step(_large)
    pair.check("with all of a large gradient")


def test_nothing_is_clipped_unless_asked_for(ranks: Ranks) -> None:
    ranks(2, _off_by_default)


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


def _set_by_hand() -> None:
    """No forward has run: the engine has no memory for gradients yet."""
    pair = Pair()
    for mine, theirs in zip(pair.model.parameters(), pair.plain.parameters(), strict=True):
        mine.grad, theirs.grad = torch.ones_like(mine), torch.ones_like(theirs)
    expected = torch.nn.utils.clip_grad_norm_(pair.plain.parameters(), 1.0)
    assert float(overlap.clip_grad_norm_(pair.model.parameters(), 1.0)) == pytest.approx(float(expected), rel=1e-6)
    assert all((grad < 0.1).all() for grad in _gradients(pair.model).values())


def test_gradients_set_before_the_first_forward_are_clipped(ranks: Ranks) -> None:
    ranks(2, _set_by_hand)


def _outside() -> list[nn.Parameter]:
    """Two plain parameters with gradients, as a frozen-out module beside the sharded model has them."""
    vector, matrix = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 5).t())
    vector.grad, matrix.grad = torch.tensor([1.0, -2.0, 0.5]), torch.full((2, 5), 0.25).t()
    return [vector, nn.Parameter(torch.ones(2)), matrix]


def _clips_plain_ones_too(stage: int) -> None:
    pair = Pair(stage=stage)
    pair.backward(loss_of)
    mine, theirs = _outside(), _outside()
    norm = overlap.clip_grad_norm_([*mine, *pair.model.parameters()], LIMIT)
    expected = torch.nn.utils.clip_grad_norm_([*theirs, *pair.plain.parameters()], LIMIT)
    assert float(norm) == pytest.approx(float(expected), rel=TOLERANCE)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=2 * TOLERANCE, atol=0)
    for name, grad in _gradients(pair.model).items():
        torch.testing.assert_close(grad, pair.plain.get_parameter(name).grad, rtol=2 * TOLERANCE, atol=0)


@pytest.mark.parametrize("stage", STAGES)
def test_plain_parameters_beside_the_model_count_once(ranks: Ranks, stage: int) -> None:
    ranks(3, _clips_plain_ones_too, stage)


def _unequal_plain_gradients() -> float:
    """Ranks must not part ways even where the user has not kept a plain gradient equal."""
    pair = Pair()
    pair.backward(loss_of)
    outside = nn.Parameter(torch.ones(1))
    outside.grad = torch.tensor([1.0 + pair.rank])
    return float(overlap.clip_grad_norm_([outside, *pair.model.parameters()], LIMIT))


def test_all_ranks_scale_by_one_coefficient_whatever_plain_gradients_are(ranks: Ranks) -> None:
    assert len(set(ranks(3, _unequal_plain_gradients))) == 1


def _takes_what_torch_takes() -> None:
    pair = Pair()
    pair.backward(loss_of)
    weight = pair.model.head.weight
    alone = overlap.clip_grad_norm_(weight, 1e6)
    assert float(alone) == pytest.approx(float(pair.plain.head.weight.grad.norm()), rel=1e-6)
    twice = overlap.clip_grad_norm_([weight, weight], LIMIT, 2.0, True, None)
    assert float(twice) == float(alone), "counts once"
    assert float(overlap.grad_norm(iter([weight]))) == pytest.approx(LIMIT, rel=1e-4), "is scaled once"
    plain = overlap.clip_grad_norm_(pair.plain.head.weight, LIMIT)
    assert float(plain) == pytest.approx(float(alone), rel=1e-6)
    for nothing in ([], [nn.Parameter(torch.ones(2))]):
        assert float(overlap.clip_grad_norm_(nothing, 1.0)) == 0.0


def test_one_parameter_none_and_the_same_twice_are_taken(ranks: Ranks) -> None:
    ranks(2, _takes_what_torch_takes)


def _refuses_nonfinite() -> None:
    model = shard_blocks(seeded())
    loss = loss_of(model, 0, 0) * (float("nan") if torch.distributed.get_rank() == 1 else 1.0)
    loss.backward()
    before = {name: grad.clone() for name, grad in _gradients(model).items()}
    with clear_error(overlap.StateError, "gradient norm", "nan", "'head.bias'"):
        overlap.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    for name, grad in _gradients(model).items():
        torch.testing.assert_close(grad, before[name], rtol=0, atol=0, equal_nan=True)


def test_a_norm_that_is_not_finite_can_be_refused_on_all_ranks(ranks: Ranks) -> None:
    ranks(2, _refuses_nonfinite)


def _refuses_an_inf_in_one_shard(norm_type: float) -> None:
    model = shard_blocks(seeded())
    loss_of(model, 0, 0).backward()
    spoil(model, "blocks.1.up.weight")
    with clear_error(overlap.StateError, "gradient norm", "inf", "'blocks.1.up.weight'"):
        overlap.clip_grad_norm_(model.parameters(), 1.0, norm_type, error_if_nonfinite=True)
    with pytest.raises(RuntimeError, match="non-finite"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type, error_if_nonfinite=True)


def test_an_inf_in_one_shard_is_refused_on_all_ranks_by_torchs_function_too(ranks: Ranks) -> None:
    for norm_type in (2.0, INF):
        ranks(2, _refuses_an_inf_in_one_shard, norm_type)


def _refuses_arguments() -> None:
    original = seeded()
    replaced = original.head.weight
    model = shard_blocks(original)
    with clear_error(overlap.ConfigError, "max_norm", "0"):
        overlap.clip_grad_norm_(model.parameters(), 0)
    for norm_type in (0, -INF, float("nan")):
        with clear_error(overlap.ConfigError, "norm_type", str(norm_type)):
            overlap.clip_grad_norm_(model.parameters(), 1.0, norm_type)
    with clear_error(overlap.StateError, "replaced", str(tuple(replaced.shape))):
        overlap.clip_grad_norm_([replaced], 1.0)
    other = fsdp2_shard(nn.Linear(4, 4))
    with clear_error(overlap.ConfigError, "DTensor", "torch.nn.utils.clip_grad_norm_"):
        overlap.grad_norm([*model.parameters(), *other.parameters()])


def test_arguments_that_make_no_norm_are_refused(ranks: Ranks) -> None:
    ranks(1, _refuses_arguments)
