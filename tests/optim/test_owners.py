"""Dealing whole matrices out to ranks: each once, alike everywhere, in balance."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.optim.owners import MatrixShape, cost_of, deal, row_width

SIZES = st.integers(1, 40)
SHAPES = st.lists(st.one_of(st.tuples(SIZES, SIZES), st.tuples(SIZES, SIZES, SIZES)), max_size=40)
WORLDS = st.integers(1, 9)


def test_cost_is_that_of_a_product_with_its_transpose() -> None:
    assert cost_of((3, 5)) == cost_of((5, 3)) == 3 * 5 * 3
    assert cost_of((7, 3, 5)) == 7 * cost_of((3, 5))


@given(shapes=SHAPES, world=WORLDS, room=st.integers(0, 5000))
def test_each_matrix_has_one_owner(shapes: list[MatrixShape], world: int, room: int) -> None:
    dealt = [each for turn in deal(shapes, world, room) for each in turn]
    assert sorted(each.index for each in dealt) == list(range(len(shapes)))
    assert all(0 <= each.owner < world and each.numel == math.prod(shapes[each.index]) for each in dealt)


def test_turns_alternate_so_that_sums_come_out_even() -> None:
    """The example of the module; a matrix of one row costs as much as it has elements."""
    (dealt,) = deal([(1, cost) for cost in (30, 60, 50, 90, 70, 40, 80)], 3, 1000)
    work = {rank: [each.numel for each in dealt if each.owner == rank] for rank in range(3)}
    assert work == {0: [90, 40, 30], 1: [80, 50], 2: [70, 60]}


@given(shapes=SHAPES, world=WORLDS, room=st.integers(0, 5000))
def test_no_rank_has_more_work_than_another_by_more_than_one_matrix(
    shapes: list[MatrixShape], world: int, room: int
) -> None:
    work = [0] * world
    for turn in deal(shapes, world, room):
        for each in turn:
            work[each.owner] += cost_of(shapes[each.index])
    assert max(work) - min(work) <= max(map(cost_of, shapes), default=0)


@given(shapes=SHAPES, world=WORLDS, room=st.integers(0, 5000))
def test_a_round_has_room_for_what_is_in_it(shapes: list[MatrixShape], world: int, room: int) -> None:
    for turn in deal(shapes, world, room):
        assert sum(each.numel for each in turn) <= room or len(turn) <= world
        ends = dict.fromkeys(range(world), 0)
        for each in turn:
            assert each.offset >= ends[each.owner]
            ends[each.owner] = each.offset + each.numel
        assert max(ends.values()) <= row_width(turn)


@given(shapes=SHAPES, world=WORLDS)
def test_what_fits_is_exchanged_at_once(shapes: list[MatrixShape], world: int) -> None:
    assert len(deal(shapes, world, sum(map(math.prod, shapes)))) == bool(shapes)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_equal_layers_share_their_rounds_evenly(world: int) -> None:
    """A transformer: what waits for the slowest owner of each turn is the last turn alone."""
    shapes = [shape for _ in range(24) for shape in ((64, 64), (64, 64), (64, 256), (256, 64))]
    rounds = deal(shapes, world, 0)
    slowest = sum(max(cost_of(shapes[each.index]) for each in turn) for turn in rounds)
    assert slowest <= 1.05 * sum(map(cost_of, shapes)) / world + max(map(cost_of, shapes))
