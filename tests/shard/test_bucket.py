"""Buckets: what is packed for a rank is what that rank's gradient shard looks like."""

from __future__ import annotations

import pytest
import torch
from shard.flats import make_flat, make_unit, values
from torch import Tensor

from overlap import ops
from overlap.shard.bucket import Bucket, make_buckets
from overlap.shard.param import local_rows
from overlap.shard.unit import Unit

SHAPES = [(9, 5), (7,), (12, 3), (40, 11)]


def packed(bucket: Bucket, grads: dict[int, Tensor]) -> Tensor:
    memory = torch.full((bucket.world, bucket.width), float("nan"))
    dims = [(grads[id(param)], param.layout.dim) for param in bucket.params]
    stored = [grad.movedim(dim, 0) if dim else grad for grad, dim in dims]
    ops.pack(stored, memory, bucket.slots, scale=1.0, accumulate=False)
    return memory


def of_one_unit(unit: Unit, max_bytes: int, *, ranks: int) -> list[Bucket]:
    return make_buckets([unit], max_bytes, torch.float32, ranks=ranks, merge_replicated=True)


@pytest.mark.parametrize("dims", [(0, 0, 0, 0), (1, 0, 1, 0)])
@pytest.mark.parametrize("max_bytes", [1, 400, 1 << 20])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_row_of_a_rank_is_what_its_gradient_shard_holds(world: int, max_bytes: int, dims: tuple[int, ...]):
    full = values(*SHAPES)
    for rank in range(world):
        flat = make_flat(full, world=world, rank=rank, dims=dims)
        grads = {id(param): grad for param, grad in zip(flat.params, full, strict=True)}
        for bucket in of_one_unit(make_unit("block", flat), max_bytes, ranks=world):
            (stretch,) = bucket.stretches
            stretch.gradient().copy_(packed(bucket, grads)[rank])
        assert torch.equal(flat.grad, flat.master)


def test_buckets_of_a_flat_are_as_wide_as_its_shard_together():
    flat = make_flat(values(*SHAPES), world=4)
    buckets = of_one_unit(make_unit("block", flat), 400, ranks=4)
    assert len(buckets) > 1
    assert sum(bucket.width for bucket in buckets) == flat.layout.shard_numel
    ends = sorted((stretch.start, stretch.start + stretch.width) for bucket in buckets for stretch in bucket.stretches)
    assert [start for start, _ in ends[1:]] == [end for _, end in ends[:-1]]


def test_a_bucket_is_world_rows_of_its_dtype():
    flat = make_flat(values((8, 16)), world=4)
    (bucket,) = make_buckets([make_unit("u", flat)], 1 << 20, torch.bfloat16, ranks=4, merge_replicated=True)
    assert (bucket.world, bucket.width, bucket.replicated) == (4, 32, False)
    assert (bucket.numel, bucket.nbytes) == (128, 256)


def test_a_size_limit_cuts_and_larger_parameters_stand_alone():
    flat = make_flat(values((8, 8), (8, 8), (64, 8), (8, 8)), world=2)
    buckets = of_one_unit(make_unit("u", flat), 4 * 128, ranks=2)
    assert [[param.fqn for param in bucket.params] for bucket in buckets] == [["p3"], ["p2"], ["p0", "p1"]]


def test_buckets_come_in_the_order_that_backward_completes_them():
    units = [make_unit(f"blocks.{n}", make_flat(values((8, 8)), world=2)) for n in range(3)]
    small = make_flat(values((3,)), world=1)
    units.append(make_unit("head", small))
    buckets = make_buckets(units, 1 << 20, torch.float32, ranks=2, merge_replicated=True)
    assert [bucket.name for bucket in buckets] == ["blocks.2", "blocks.1", "blocks.0", "replicated"]


def test_units_at_the_edge_of_backward_are_cut_into_four():
    four = [(64, 4096)] * 4  # 1 MiB each
    inner = [make_unit(f"blocks.{n}", make_flat(values(*four), world=2)) for n in range(3)]
    root = make_unit("", make_flat(values(*four), world=2))
    root.leaf = False
    buckets = make_buckets([root, *inner], 64 << 20, torch.float32, ranks=2, merge_replicated=True)
    names = [bucket.name for bucket in buckets]
    assert names == ["blocks.2", "blocks.1", *["blocks.0"] * 4, *[""] * 4]
    assert [bucket.params[0].fqn for bucket in buckets[2:6]] == ["p3", "p2", "p1", "p0"]


def test_an_edge_is_not_cut_below_a_mebibyte():
    unit = make_unit("", make_flat(values(*[(64, 1024)] * 8), world=2))  # 256 KiB each
    assert [len(bucket.params) for bucket in of_one_unit(unit, 64 << 20, ranks=2)] == [4, 4]


def test_frozen_parameters_are_in_no_bucket():
    frozen = make_flat(values((8, 8)), world=2, trainable=False)
    assert of_one_unit(make_unit("u", frozen), 1 << 20, ranks=2) == []


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_replicated_parameters_of_all_units_share_one_bucket(ranks: int):
    full = values((3,), (4, 2), ())
    flats = [make_flat(full[:2], world=1), make_flat(full[2:], world=1)]
    units = [make_unit("a", flats[0]), make_unit("b", flats[1])]
    (bucket,) = make_buckets(units, 1, torch.float32, ranks=ranks, merge_replicated=True)
    assert bucket.replicated
    assert bucket.world == 1
    assert bucket.width % ranks == 0
    params = [param for flat in flats for param in flat.params]
    memory = packed(bucket, {id(param): grad for param, grad in zip(params, full, strict=True)})
    for stretch in bucket.stretches:
        stretch.gradient().copy_(memory[0, stretch.column : stretch.column + stretch.width])
    assert all(torch.equal(flat.grad, flat.master) for flat in flats)


def test_unmerged_replicated_parameters_stay_with_their_unit_and_are_padded_to_the_ranks():
    units = [make_unit(name, make_flat(values((300,)), world=1)) for name in ("a", "b")]
    buckets = make_buckets(units, 1 << 20, torch.float32, ranks=5, merge_replicated=False)
    assert [bucket.name for bucket in buckets] == ["b", "a"]
    assert [(bucket.width, bucket.stretches[0].width) for bucket in buckets] == [(305, 304)] * 2


def test_memory_of_its_own_is_made_once_and_starts_at_zero():
    (bucket,) = of_one_unit(make_unit("u", make_flat(values((8, 8)), world=2)), 1 << 20, ranks=2)
    own = bucket.take_own(torch.bfloat16)
    assert (own.shape, own.dtype) == ((2, 32), torch.bfloat16)
    assert not own.any()
    assert bucket.take_own(torch.float32) is own


@pytest.fixture
def accumulated() -> Bucket:
    """Two parameters whose gradients have been accumulated, not reduced."""
    (bucket,) = of_one_unit(make_unit("u", make_flat(values((8, 8), (8, 8)), world=2)), 1 << 20, ranks=2)
    bucket.take_own(torch.float32).fill_(1.0)
    bucket.accumulating = True
    for param in bucket.params:
        param.used = True
    return bucket


def test_discarded_gradients_are_forgotten_and_their_neighbours_kept(accumulated: Bucket):
    first, second = accumulated.params
    first.discard = True
    accumulated.forget_discarded()
    slots = accumulated.slots
    sums = [int(accumulated.own[:, slot.offset : slot.offset + slot.chunk].sum()) for slot in slots]
    assert sums == [0, 64]
    assert (first.used, second.used, first.discard) == (False, True, False)
    assert accumulated.accumulating


def test_a_bucket_whose_gradients_are_all_discarded_accumulates_no_more(accumulated: Bucket):
    for param in accumulated.params:
        param.discard = True
    accumulated.forget_discarded()
    assert not accumulated.accumulating
    assert not any(param.used or param.discard for param in accumulated.params)


def test_shared_memory_is_the_front_of_what_buckets_take_turns_on():
    (bucket,) = of_one_unit(make_unit("u", make_flat(values((8, 8)), world=2)), 1 << 20, ranks=2)
    memory = torch.zeros(bucket.numel + 100)
    bucket.share(memory)
    assert bucket.take_shared().shape == (2, 32)
    assert bucket.take_shared().data_ptr() == memory.data_ptr()


def test_local_rows_leave_padding_out():
    flat = make_flat(values((5, 3)), world=2, rank=1)
    rows = local_rows(flat.master, flat.layout.params[0], 1)
    assert rows.tolist() == [[10, 11, 12], [13, 14, 15]]
    assert not flat.master[6:].any()
