from itertools import combinations

from support.covering import covering, every, pairs_of

AXES = {"stage": (0, 1, 2, 3), "world": (1, 2, 3, 4), "dtype": ("fp32", "bf16"), "clip": (False, True)}


def test_any_two_values_of_two_axes_meet_in_a_row() -> None:
    met = {(row[a], row[b], a, b) for row in covering(AXES, "seed") for a, b in combinations(AXES, 2)}
    assert met == {(x, y, a, b) for a, b in combinations(AXES, 2) for x in AXES[a] for y in AXES[b]}


def test_rows_are_few_and_each_adds_something() -> None:
    rows = covering(AXES, "seed")
    assert 16 <= len(rows) <= 20 < len(every(AXES)) == 64
    covered: set[object] = set()
    for row in rows:
        assert not pairs_of(row) <= covered
        covered |= pairs_of(row)


def test_a_seed_gives_the_same_rows_again_and_another_seed_others() -> None:
    assert covering(AXES, "seed") == covering(AXES, "seed")
    assert covering(AXES, "seed") != covering(AXES, "other")


def test_an_axis_of_one_value_is_in_every_row() -> None:
    assert all(row["only"] == 1 for row in covering({"only": (1,), **AXES}, "seed"))
