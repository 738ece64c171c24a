"""Hybrid sharding: copies of the model, each sharded over a few ranks, train as one process."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.chain import BLOCKS, WIDTH, Chain, chain, close, data, sharded_chain, train_beside_twin, twin_gradients
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

import overlap

STAGES = (0, 1, 2, 3)
SHAPES = ((2, 2), (2, 1), (1, 2), (4, 1), (1, 1))
BF16 = torch.bfloat16


def _loss(net: nn.Module, step: int, rank: int | None = None) -> Tensor:
    return net(data(step, rank)).square().mean()


def _hybrid(shape: tuple[int, int], **options: Any) -> Chain:
    return sharded_chain(mesh=init_device_mesh("cpu", shape), **options)


def _replicas_agree(model: nn.Module) -> bool:
    """Whether ranks that hold the same shard have it to the bit."""
    mine = [param.to_local() for param in model.parameters()]
    mesh = next(model.parameters()).device_mesh
    theirs: list[list[Tensor]] = [[] for _ in range(mesh.size(0))]
    dist.all_gather_object(theirs, mine, group=mesh.get_group(0))
    return all(torch.equal(a, b) for each in theirs for a, b in zip(mine, each, strict=True))


def _trains(shape: tuple[int, int], stage: int) -> None:
    model = _hybrid(shape, stage=stage)
    for _ in train_beside_twin(model):
        assert _replicas_agree(model)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_trains_as_one_process_and_replicas_stay_equal(ranks: Ranks, shape: tuple[int, int], stage: int) -> None:
    ranks(shape[0] * shape[1], _trains, shape, stage)


def _policies(stage: int) -> None:
    """Each micro-batch crosses; none but the last does; none is reduced but the last."""
    twin = chain()
    for micro in range(3):
        twin_gradients(twin, lambda net, rank, micro=micro: _loss(net, micro, rank))
    model = _hybrid((2, 2), stage=stage)
    for policy in ("each", "within a copy", "none", "within a copy"):
        for micro in range(3):
            if policy == "within a copy":
                model.set_requires_all_reduce(micro == 2)
            if policy == "none":
                model.set_requires_gradient_sync(micro == 2)
            before = overlap.engine_of(model).comms["replicate"].counter.snapshot()
            _loss(model, micro).backward()
            crossed = (overlap.engine_of(model).comms["replicate"].counter.snapshot() - before).sent_bytes
            assert bool(crossed) == (policy == "each" or micro == 2)
            if policy != "each" and micro < 2:
                assert all(param.grad is None for param in model.parameters())
        assert close(model.parameters(), twin.parameters()), policy
        model.zero_grad()
        overlap.engine_of(model).discard_gradients()


@pytest.mark.parametrize("stage", STAGES)
def test_every_accumulation_policy_adds_up(ranks: Ranks, stage: int) -> None:
    ranks(4, _policies, stage)


def _discards() -> None:
    model, twin = _hybrid((2, 2), stage=2), chain()
    update = overlap.AdamW(model.parameters())
    model.set_requires_all_reduce(False)
    _loss(model, 7).backward()
    update.zero_grad()
    model.set_requires_all_reduce(True)
    _loss(model, 0).backward()
    twin_gradients(twin, lambda net, rank: _loss(net, 0, rank))
    assert close(model.parameters(), twin.parameters())


def test_zero_grad_drops_what_has_not_crossed(ranks: Ranks) -> None:
    ranks(4, _discards)


def _keeps_precision() -> None:
    """On a bf16 wire the partial sums of 64 micro-batches are rounded once, not 64 times."""
    errors = []
    for micros in (1, 64):
        model, twin = _hybrid((2, 2), stage=2, reduce_dtype=BF16), chain()
        for micro in range(micros):
            model.set_requires_all_reduce(micro == micros - 1)
            (_loss(model, 0) / micros).backward()
        twin_gradients(twin, lambda net, rank: _loss(net, 0, rank))
        pairs = zip(model.parameters(), twin.parameters(), strict=True)
        errors.append(max(float((a.grad.full_tensor() - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs))
    assert errors[0] > 1e-4  # the wire does round
    assert errors[1] < 2 * errors[0]


def test_partial_sums_do_not_lose_precision_with_the_number_of_micro_batches(ranks: Ranks) -> None:
    ranks(4, _keeps_precision)


def _factor() -> list[Tensor]:
    model = _hybrid((2, 2))
    model.set_gradient_divide_factor(300)
    flat = sharded_chain()
    flat.set_gradient_divide_factor(300)
    for each in (model, flat):
        _loss(each, 0).backward()
    assert close(model.parameters(), [_plain(param) for param in flat.parameters()])
    return [param.grad.full_tensor() for param in model.parameters()]


def _plain(param: nn.Parameter) -> nn.Parameter:
    whole = nn.Parameter(param.full_tensor().detach())
    assert isinstance(param.grad, DTensor)
    whole.grad = param.grad.full_tensor()
    return whole


def test_one_divide_factor_means_the_same_on_any_mesh(ranks: Ranks) -> None:
    ranks(4, _factor)


def _counts(stage: int) -> None:
    model = _hybrid((2, 2), stage=stage)
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        _loss(model, step).backward()
        update.step()
        update.zero_grad()
    engine = overlap.engine_of(model)
    wire, memory = engine.wire(), engine.memory()
    assert wire.counted == pytest.approx(wire.formula + sum(wire.items.values()))
    assert memory.predicted == memory.allocated
    # Per block 16 x 16 weights, shared by two unless nothing is, and 16 biases, whole.
    crossing = BLOCKS * (WIDTH * WIDTH // (1 if stage == 0 else 2) + WIDTH) * 4
    assert engine.comms["replicate"].counter.snapshot().sent == {"replicate": 3 * crossing}


@pytest.mark.parametrize("stage", STAGES)
def test_every_byte_has_a_name(ranks: Ranks, stage: int) -> None:
    ranks(4, _counts, stage)


def _in_a_part_of_the_world() -> None:
    """Ranks 1 and 2 train; some ranks are in more groups than others, which names of groups must survive."""
    rank = dist.get_rank()
    odd = dist.new_group([0, 1])
    mesh = DeviceMesh("cpu", [[1], [2]])
    if rank not in (1, 2):
        return
    assert (odd is not None) == (rank == 1) or rank == 2
    model, twin = sharded_chain(mesh=mesh), chain()
    for step in range(2):
        model.zero_grad()
        twin.zero_grad()
        _loss(model, step, rank).backward()
        (sum(_loss(twin, step, each) for each in (1, 2)) / 2).backward()
        assert close(model.parameters(), twin.parameters())


def test_any_ranks_may_form_a_mesh(ranks: Ranks) -> None:
    ranks.fresh(4, _in_a_part_of_the_world)


def _single_parameter() -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    twin = nn.Linear(WIDTH, WIDTH, bias=False)
    twin.load_state_dict(model.state_dict())
    dist.broadcast(twin.weight.data, 0)
    overlap.shard(model, mesh=init_device_mesh("cpu", (2, 1)), replicate_max_numel=0)
    _loss(model, 0).backward()
    twin_gradients(twin, lambda net, rank: _loss(net, 0, rank))
    assert close(model.parameters(), twin.parameters())


def test_a_shard_group_of_one_still_averages_over_copies(ranks: Ranks) -> None:
    ranks(2, _single_parameter)
