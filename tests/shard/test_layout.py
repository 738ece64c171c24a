"""Where every element lives, against torch's own row split."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.relaxed import relaxed

from overlap.shard.layout import ALIGN, LEAST_ALIGN, aligned, lay_out, pieces, split_dim

shapes = st.lists(st.integers(1, 40), min_size=0, max_size=3).map(tuple)
worlds = st.integers(1, 9)


@relaxed
@given(st.lists(shapes, min_size=1, max_size=8), worlds)
def test_rows_are_split_as_torch_chunks_them(flat: list[tuple[int, ...]], world: int):
    for shape, param in zip(flat, lay_out(flat, world).params, strict=True):
        rows = torch.arange(shape[0] if shape else 1)
        chunks = torch.chunk(rows, world)
        expected = [chunk.tolist() for chunk in chunks] + [[]] * (world - len(chunks))
        owned = [rows[start : start + count].tolist() for start, count in map(param.rows_of, range(world))]
        assert owned == expected


@relaxed
@given(st.lists(shapes, min_size=1, max_size=8), worlds)
def test_parameters_lie_behind_each_other_at_aligned_places(flat: list[tuple[int, ...]], world: int):
    layout = lay_out(flat, world)
    end = full_end = 0
    for param in layout.params:
        align = max(LEAST_ALIGN, min(ALIGN, 1 << math.ceil(math.log2(max(param.chunk, 1)))))
        assert param.offset % align == param.full_offset % ALIGN == 0
        assert end <= param.offset < end + align
        assert full_end <= param.full_offset < full_end + ALIGN
        end, full_end = param.offset + param.chunk, param.full_offset + param.chunk * world
    assert (layout.shard_numel, layout.full_numel) == (aligned(end, LEAST_ALIGN), aligned(full_end))


@relaxed
@given(st.lists(shapes, min_size=1, max_size=8), st.integers(1, 2000))
def test_padding_is_never_much_more_than_what_it_pads(flat: list[tuple[int, ...]], world: int):
    layout = lay_out(flat, world)
    room = sum(max(param.chunk, LEAST_ALIGN) for param in layout.params)
    assert layout.shard_numel < 2 * room + ALIGN


@relaxed
@given(st.lists(shapes, min_size=1, max_size=8), worlds)
def test_every_rank_has_room_for_its_rows(flat: list[tuple[int, ...]], world: int):
    layout = lay_out(flat, world)
    for shape, param in zip(flat, layout.params, strict=True):
        assert param.numel == math.prod(shape)
        assert all(param.rows_of(rank)[1] * param.row_numel <= param.chunk for rank in range(world))
        assert param.chunk * world >= param.numel
    assert layout.numel == sum(map(math.prod, flat))


@st.composite
def shapes_and_dims(draw: st.DrawFn) -> tuple[tuple[int, ...], int]:
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple))
    return shape, draw(st.integers(0, len(shape) - 1))


@relaxed
@given(shapes_and_dims(), worlds)
def test_another_dimension_is_split_as_torch_chunks_it(drawn: tuple[tuple[int, ...], int], world: int):
    shape, dim = drawn
    full = torch.arange(math.prod(shape)).view(shape)
    (param,) = lay_out([shape], world, [dim]).params
    stored = full.movedim(dim, 0)
    assert tuple(stored.shape) == param.stored_shape
    for rank, chunk in enumerate(torch.chunk(full, world, dim)):
        start, rows = param.rows_of(rank)
        assert torch.equal(stored[start : start + rows].movedim(0, dim), chunk)


@relaxed
@given(shapes, worlds, st.integers(0, 2000))
def test_the_first_dimension_that_reaches_every_rank_is_split(shape: tuple[int, ...], world: int, small: int):
    reaching = [dim for dim, size in enumerate(shape) if len(torch.chunk(torch.empty(size), world)) == world]
    expected = reaching[0] if reaching and math.prod(shape) > small else None
    assert split_dim(shape, world, small) == expected


def test_a_whole_flat_by_hand():
    layout = lay_out([(5, 3), (7,), ()], 2)
    assert [(param.chunk, param.offset, param.full_offset) for param in layout.params] == [
        (9, 0, 0),
        (4, 16, 128),
        (1, 24, 256),
    ]
    assert (layout.shard_numel, layout.full_numel) == (32, 384)


def test_nothing_takes_no_room():
    layout = lay_out([], 4)
    assert (layout.shard_numel, layout.full_numel, layout.numel) == (0, 0, 0)


def test_more_than_2_to_the_31_elements_are_counted_exactly():
    rows, columns, world = 3_000_000, 4_097, 7
    layout = lay_out([(rows, columns), (rows, columns)], world)
    first, second = layout.params
    assert first.numel == 12_291_000_000 > 2**31
    assert first.chunk == 428_572 * columns
    assert second.offset == aligned(first.chunk) > 2**30
    assert second.full_offset == aligned(first.chunk * world) > 2**33
    assert second.rows_of(6) == (6 * 428_572, rows - 6 * 428_572)


@relaxed
@given(st.integers(0, 10**12))
def test_alignment_rounds_up_to_the_next_multiple(numel: int):
    assert aligned(numel) % ALIGN == 0
    assert numel <= aligned(numel) < numel + ALIGN


@pytest.mark.parametrize(
    ("shape", "world", "small", "dim"),
    [
        ((5,), 4, 0, None),  # 2 + 2 + 1 + 0 rows
        ((5, 100), 4, 0, 1),
        ((6, 3, 100), 4, 0, 2),
        ((7, 100), 4, 0, 0),
        ((8, 1024), 2, 8192, None),
        ((8, 1025), 2, 8192, 0),
        ((), 1, 0, None),
        ((3,), 1, 0, 0),
    ],
)
def test_the_rule_by_example(shape: tuple[int, ...], world: int, small: int, dim: int | None):
    assert split_dim(shape, world, small) == dim


@st.composite
def flats_and_orders(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], int, list[int]]:
    flat = draw(st.lists(shapes, min_size=1, max_size=10))
    taking_part = draw(st.sets(st.sampled_from(range(len(flat)))))
    return flat, draw(worlds), sorted(taking_part)


@relaxed
@given(flats_and_orders(), st.integers(1, 5000))
def test_pieces_cut_the_order_into_runs_that_fit(drawn: tuple[list[tuple[int, ...]], int, list[int]], most: int):
    flat, world, order = drawn
    layout = lay_out(flat, world)
    cut = pieces(layout, order, most)
    assert [index for run in cut for index in run] == order
    for run in cut:
        assert run == list(range(run[0], run[-1] + 1))
        assert len(run) == 1 or sum(layout.params[index].chunk * world for index in run) <= most


@relaxed
@given(flats_and_orders(), st.integers(1, 5000))
def test_pieces_are_as_long_as_they_may_be(drawn: tuple[list[tuple[int, ...]], int, list[int]], most: int):
    flat, world, order = drawn
    layout = lay_out(flat, world)
    cut = pieces(layout, order, most)
    for run, following in pairwise(cut):
        size = sum(layout.params[index].chunk * world for index in (*run, following[0]))
        assert following[0] != run[-1] + 1 or size > most
