"""Parameters of more than 2^31 elements: every offset, size and view is exact. On meta, where nothing is allocated."""

import pytest
import torch
from support.chain import WIDTH
from torch import nn

from overlap.comm.volume import total_wire_bytes, wire_bytes
from overlap.config import ShardOptions
from overlap.shard.bucket import make_buckets
from overlap.shard.flat import Flat, FlatKey, empty_flat
from overlap.shard.layout import aligned, lay_out, pieces, split_dim
from overlap.shard.param import Owner, ShardedParam, as_shaped, local_rows
from overlap.shard.slot import Slot
from overlap.shard.unit import Unit

META = torch.device("meta")
LIMIT = 2**31
SHAPES = ((70_001, 50_021), (3, WIDTH), (2**20 + 7, 4099), (5, 2**16, 2**15))  # the last is split along dimension 1


def _flat(world: int, rank: int) -> Flat:
    key = FlatKey(world == 1, True, torch.float32, torch.bfloat16)
    dims = [split_dim(shape, world, 0) or 0 for shape in SHAPES]
    flat = empty_flat(key, lay_out(SHAPES, world, dims), rank, META, None)  # type: ignore[arg-type]
    flat.grad = torch.empty_like(flat.master)
    for number, place in enumerate(flat.layout.params):
        table: dict[str, nn.Parameter | None] = {}
        table["p"] = public = nn.Parameter(local_rows(flat.master, place, flat.rank))
        flat.add(ShardedParam(f"p{number}", (Owner(table, "p"),), place, True, public))
    return flat


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_rank_has_its_rows(world: int) -> None:
    flats = [_flat(world, rank) for rank in range(world)]
    for number, shape in enumerate(SHAPES):
        rows = [flat.params[number].public.numel() for flat in flats]
        assert sum(rows) == _numel(shape)
        assert all(flat.params[number].public.untyped_storage().nbytes() > 4 * LIMIT for flat in flats)
        starts = {flat.params[number].public.storage_offset() for flat in flats}
        assert starts == {flats[0].layout.params[number].offset}
    assert flats[0].layout.params[-1].offset > LIMIT / world


@pytest.mark.parametrize("world", [2, 3, 8])
def test_buckets_and_gathers_count_exactly(world: int) -> None:
    flat = _flat(world, 0)
    unit = Unit("", ShardOptions(), (flat,), leaf=True)
    first = Unit("first", ShardOptions(), (_flat(world, 0),), leaf=True)  # whose gradients come last
    bucket, *edge = make_buckets([first, unit], 1 << 40, torch.float32, ranks=world, merge_replicated=True)
    assert [each.name for each in edge] == ["first"] * 3
    assert sum(each.nbytes for each in edge) == bucket.nbytes
    assert bucket.nbytes == 4 * world * flat.layout.shard_numel > 4 * LIMIT
    assert [slot.offset for slot in bucket.slots] == [place.offset for place in flat.layout.params]
    assert sum(slot.numel for slot in bucket.slots) == sum(map(_numel, SHAPES))
    assert wire_bytes("reduce_scatter", bucket.nbytes, world) == bucket.nbytes * (world - 1) // world
    assert total_wire_bytes("all_reduce", bucket.nbytes, world) == 2 * bucket.nbytes * (world - 1)
    assert unit.gather_bytes == 2 * (world - 1) * sum(place.chunk for place in flat.layout.params)


@pytest.mark.parametrize("world", [2, 3])
def test_full_parameters_lie_behind_each_other_in_the_slot(world: int) -> None:
    flat = _flat(world, 0)
    unit = Unit("", ShardOptions(), (flat,), leaf=True)
    assert unit.slot_bytes > 2 * LIMIT
    unit.place(Slot(unit.slot_bytes, META))
    end = 0
    for param, shape in zip(unit.params, SHAPES, strict=True):
        assert param.working is not None
        assert tuple(param.working.shape) == shape
        assert param.working.storage_offset() == aligned(end) == param.layout.full_offset
        end = param.layout.full_offset + param.layout.chunk * world
    assert unit.params[-1].working.storage_offset() > LIMIT  # type: ignore[union-attr]


def test_a_limit_beyond_them_and_one_below_cut_alike() -> None:
    layout = lay_out(SHAPES, 2)
    everything = range(len(SHAPES))
    assert pieces(layout, everything, 2**40) == [[0, 1, 2, 3]]
    assert pieces(layout, everything, 1) == [[0], [1], [2], [3]]
    assert pieces(layout, everything, _numel(SHAPES[0]) + 10**6) == [[0, 1], [2], [3]]


def test_a_view_beyond_2_to_the_31_starts_where_it_should() -> None:
    place = lay_out(SHAPES, 1).params[-1]
    stored = torch.empty(place.numel, device=META)
    view = as_shaped(stored, place, place.rows)
    assert view.shape == SHAPES[-1]
    assert view[4, -1, -1].storage_offset() == place.numel - 1 > LIMIT
