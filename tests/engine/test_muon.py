"""Muon orthogonalises whole matrices, however they are sharded: as torch's in one process, to the bit."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.clear_error import clear_error
from support.matrices import BF16, MuonPair, give_gradients, groups_of, loss_of, seeded, sharded, vectors_of
from support.pair import assert_same_bits, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import overlap
from overlap.comm.meshes import compute_communicator
from overlap.optim import orthogonal

STAGES = (0, 1, 2, 3)
WORLDS = (1, 2, 3, 4)


def _equals_torchs(stage: int, options: dict[str, Any], first: dict[str, Any]) -> None:
    pair = MuonPair(stage=stage, options=options, first=first)
    for _ in range(4):
        pair.step()
    pair.check(f"at stage {stage}")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("world", WORLDS)
def test_it_trains_as_torchs_muon_in_one_process_to_the_bit(ranks: Ranks, world: int, stage: int) -> None:
    ranks(world, _equals_torchs, stage, {}, {})


VARIANTS = [
    {"nesterov": False, "momentum": 0.8},
    {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
    {"adjust_lr_fn": "original", "momentum": 0.0, "eps": 1e-3},
    {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 7, "weight_decay": 0.5, "lr": 0.03},
    {"ns_steps": 0},
]


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: " ".join(options))
def test_every_option_means_what_it_means_in_torch(ranks: Ranks, options: dict[str, Any]) -> None:
    ranks(2, _equals_torchs, 3, options, {})


def _rate_in_a_tensor() -> None:
    trained = []
    for rate in (torch.tensor(0.03), torch.tensor(0.03).item()):
        model = sharded()
        update = overlap.Muon(groups_of(model), lr=rate)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(update, 5)
        for step in range(3):
            give_gradients(model, step)
            update.step()
            scheduler.step()
        trained.append(whole(model))
    for name, value in trained[0].items():
        torch.testing.assert_close(value, trained[1][name], rtol=0, atol=1e-6)


def test_schedulers_drive_it_also_where_the_rate_is_a_tensor(ranks: Ranks) -> None:
    ranks(2, _rate_in_a_tensor)


def test_groups_have_options_of_their_own(ranks: Ranks) -> None:
    first = {"lr": 0.1, "momentum": 0.5, "nesterov": False, "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw"}
    ranks(2, _equals_torchs, 3, {"weight_decay": 0.2}, first)


def _hybrid(shape: tuple[int, int], stage: int) -> None:
    pair = MuonPair(stage=stage, mesh=init_device_mesh("cpu", shape))
    for _ in range(3):
        pair.step()
    pair.check()
    mine: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(mine, whole(pair.model))
    for other in mine:
        assert_same_bits(other, mine[0], "between copies")


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("shape", [(2, 2), (4, 1), (1, 4)])
def test_a_hybrid_mesh_trains_alike_and_its_copies_stay_equal(ranks: Ranks, shape: tuple[int, int], stage: int) -> None:
    ranks(4, _hybrid, shape, stage)


def _by_hand(stage: int, ns_dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The same gradients for any number of ranks, set by the user."""
    model = sharded(stage=stage)
    update = overlap.Muon(groups_of(model), lr=0.02, ns_dtype=ns_dtype)
    for step in range(3):
        give_gradients(model, step)
        update.step()
        update.zero_grad()
    return whole(model)


@pytest.mark.parametrize("ns_dtype", [None, torch.float32, BF16])
@pytest.mark.parametrize("stage", [0, 3])
def test_updates_are_the_same_to_the_bit_for_any_number_of_ranks(
    ranks: Ranks, stage: int, ns_dtype: torch.dtype | None
) -> None:
    (alone,) = ranks(1, _by_hand, stage, ns_dtype)
    for world in (2, 3, 4):
        for result in ranks(world, _by_hand, stage, ns_dtype):
            assert_same_bits(result, alone, f"over {world} ranks")


def _exact(values: Tensor, steps: int = 5) -> Tensor:
    """The source's loop in fp64."""
    a, b, c = (3.4445, -4.7750, 2.0315)
    x = values.double() / values.double().norm()
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def _is_precise() -> None:
    model = sharded()
    before = whole(model)
    give_gradients(model, 0)
    grads = {name: param.grad.full_tensor() for name, param in model.named_parameters()}
    overlap.Muon(groups_of(model), lr=1.0, weight_decay=0.0).step()
    for name, value in whole(model).items():
        if before[name].ndim == 2:
            rows, columns = value.shape
            step = _exact(grads[name]) * max(1, rows / columns) ** 0.5
            torch.testing.assert_close((before[name] - value).double(), step, rtol=0, atol=2e-5)


def test_on_cpu_it_iterates_in_fp32_unless_told_otherwise(ranks: Ranks) -> None:
    ranks(2, _is_precise)


def _keeps_strides() -> None:
    """A kernel stored channels last, and a weight stored transposed, are the same matrices."""
    trained = []
    for other in (False, True):
        model = seeded()
        if other:
            model.kernel.to(memory_format=torch.channels_last)
            model.up.weight = nn.Parameter(model.up.weight.detach().t().contiguous().t())
        overlap.shard(model, unit="*", replicate_max_numel=37)
        update = overlap.Muon(groups_of(model), lr=0.02)
        give_gradients(model, 0)
        update.step()
        trained.append(whole(model))
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name]), name


@pytest.mark.parametrize("world", [1, 2, 4])
def test_how_a_weight_lies_in_memory_does_not_matter(ranks: Ranks, world: int) -> None:
    ranks(world, _keeps_strides)


def _rounds(room: int) -> dict[str, Tensor]:
    before, orthogonal.ROUND_NUMEL = orthogonal.ROUND_NUMEL, room
    try:
        return _by_hand(3, None)
    finally:
        orthogonal.ROUND_NUMEL = before


def test_how_much_is_exchanged_at_once_does_not_matter(ranks: Ranks) -> None:
    many, some, one = (ranks(3, _rounds, room)[0] for room in (1, 1200, 2**24))
    assert_same_bits(many, one)
    assert_same_bits(some, one)


def _computes_with_what_it_has_written(stage: int) -> None:
    """Nobody else changes anything that would make the engine look."""
    model = sharded(stage=stage, param_dtype=BF16)
    update = overlap.Muon(groups_of(model), lr=0.02)
    seen: dict[str, Tensor] = {}
    model.down.register_forward_pre_hook(lambda module, args: seen.update(down=module.weight.detach().clone()))
    for step in range(3):
        loss = loss_of(model, dist.get_rank(), step)
        loss.backward(retain_graph=True)
        update.step()
        update.zero_grad()
        if stage:
            with clear_error(overlap.StateError, "weights that have changed since its forward"):
                loss.backward()
        with torch.no_grad():
            loss_of(model, dist.get_rank(), step)
        assert torch.equal(seen["down"], whole(model)["down.weight"].bfloat16()), f"after step {step}"


@pytest.mark.parametrize("stage", STAGES)
def test_compute_in_bf16_follows_every_update_of_the_master(ranks: Ranks, stage: int) -> None:
    ranks(2, _computes_with_what_it_has_written, stage)


def _takes_narrow_gradients(stage: int) -> None:
    pair = MuonPair(stage=stage, param_dtype=BF16, grad_dtype=BF16)
    pair.others = []
    for _ in range(3):
        pair.step()
    assert pair.model.up.weight.dtype == torch.float32
    pair.check()


@pytest.mark.parametrize("stage", [0, 3])
def test_gradients_kept_in_bf16_go_into_an_fp32_momentum(ranks: Ranks, stage: int) -> None:
    ranks(2, _takes_narrow_gradients, stage)


def _leaves_unused_alone() -> None:
    pair = MuonPair()
    for _ in range(2):
        pair.step()
    pair.backward()
    for model in (pair.model, pair.plain):
        model.square.weight.grad = model.experts.grad = None
    before = whole(pair.model)
    momentum = pair.update.state[pair.model.experts]["momentum_buffer"].to_local().clone()
    pair.apply()
    pair.check()
    after = whole(pair.model)
    assert {name for name in before if torch.equal(before[name], after[name])} == {"square.weight", "experts"}
    assert torch.equal(pair.update.state[pair.model.experts]["momentum_buffer"].to_local(), momentum)
    pair.step()
    pair.check()


def test_weights_and_momentum_stay_where_no_gradient_came(ranks: Ranks) -> None:
    ranks(2, _leaves_unused_alone)


def _who_works() -> Counter[tuple[int, ...]]:
    """Shapes of the matrices that this rank orthogonalises in a step."""
    worked: Counter[tuple[int, ...]] = Counter()
    before = orthogonal.newton_schulz

    def counting(matrices: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        worked[tuple(matrices.shape)] += 1
        return before(matrices, *args, **kwargs)

    orthogonal.newton_schulz = counting
    try:
        model = sharded(stage=3)
        give_gradients(model, 0)
        overlap.Muon(groups_of(model)).step()
    finally:
        orthogonal.newton_schulz = before
    return worked


def test_each_matrix_is_worked_on_by_one_rank(ranks: Ranks) -> None:
    work = ranks(2, _who_works)
    together = sum(work, Counter())
    cut = [(37, 16), (3, 37), (16, 3), (16, 16), (6, 36)]
    assert {shape: together[shape] for shape in cut} == dict.fromkeys(cut, 1)
    # Two of four experts each; of three, two and one: no rank needs anything from the other.
    assert work[0][(2, 16, 8)] == work[1][(2, 16, 8)] == 1
    assert work[0][(2, 8, 16)] == work[1][(1, 8, 16)] == 1
    assert sum(together.values()) == len(cut) + 4
    assert abs(sum(work[0].values()) - sum(work[1].values())) <= 1


def _sent(stacks_only: bool, ns_dtype: torch.dtype) -> int:
    model = sharded(stage=3)
    give_gradients(model, 0)
    groups = groups_of(model)
    update = overlap.Muon(groups[1:] if stacks_only else groups[:1], ns_dtype=ns_dtype)
    counter = compute_communicator(model.up.weight.device_mesh).counter
    before = counter.snapshot()
    update.step()
    return (counter.snapshot() - before).sent.get("muon", 0)


def test_bytes_on_the_wire_are_counted_and_follow_the_dtype(ranks: Ranks) -> None:
    assert ranks(1, _sent, False, BF16) == [0]
    assert ranks(2, _sent, True, BF16) == [0, 0], "stacks are split between their matrices"
    narrow, wide = (ranks(2, _sent, False, dtype) for dtype in (BF16, torch.float32))
    assert wide == [2 * each for each in narrow]
    rows = 19 * 16 + 2 * 37 + 8 * 3 + 8 * 16 + 3 * 36
    # Owners' rows: (37, 16) and (16, 3) on one rank, (6, 36), (3, 37) and (16, 16)... whatever, of equal width.
    assert 2 * rows < narrow[0] == narrow[1] < 2 * (rows + 2048)


def _beside_adamw() -> None:
    """Muon for matrices, AdamW for the rest, in one model."""
    pair = MuonPair(stage=3)
    pair.others = [overlap.AdamW(vectors_of(pair.model), lr=1e-2), torch.optim.AdamW(vectors_of(pair.plain), lr=1e-2)]
    for _ in range(3):
        pair.step()
    mine, theirs = whole(pair.model), whole(pair.plain)
    for name, value in mine.items():
        if value.ndim > 1:
            assert torch.equal(value, theirs[name]), name
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-6)


def test_it_shares_a_model_with_adamw(ranks: Ranks) -> None:
    ranks(2, _beside_adamw)


def _shares_a_flat() -> None:
    """Some matrices of a flat each; the order in which the optimizers were built does not matter."""
    trained = []
    for order in (1, -1):
        model = overlap.shard(seeded(), replicate_max_numel=16)
        mine, others = (
            [model.up.weight, model.square.weight],
            [model.down.weight, model.wide.weight, model.kernel.weight],
        )
        makes = (partial(overlap.Muon, mine, lr=0.02), partial(overlap.AdamW, others, lr=0.02))[::order]
        updates = [make() for make in makes][::order]
        for step in range(3):
            give_gradients(model, step)
            for update in updates:
                update.step()
        trained.append(whole(model))
        for item in overlap.engine_of(model).memory().items:
            assert item.predicted == item.allocated, item
    assert_same_bits(*trained)


def test_it_shares_flats_with_adamw(ranks: Ranks) -> None:
    ranks(2, _shares_a_flat)


def _memory() -> None:
    model = sharded(stage=3)
    update = overlap.Muon(groups_of(model))
    momentum = sum(state["momentum_buffer"].to_local().numel() for state in update.state.values())
    (item,) = [item for item in overlap.engine_of(model).memory().items if item.name == "moments"]
    assert item.predicted == item.allocated
    assert 4 * momentum <= item.allocated < 8 * momentum


def test_momentum_takes_four_bytes_per_parameter_and_is_reported(ranks: Ranks) -> None:
    ranks(2, _memory)


def _watching() -> None:
    runs = [MuonPair(**watching) for watching in ({}, {"timeline": True, "nvtx": True}, {"lanes": "inline"})]
    for run in runs:
        for _ in range(3):
            run.step()
        assert_same_bits(whole(run.model), whole(runs[0].model))
    spans = [span for span in runs[1].engine.timeline if span.kind == "update"]
    assert spans


def test_observation_and_lanes_change_nothing(ranks: Ranks) -> None:
    ranks(2, _watching)
