"""Few rows of a table that hold every pair of values: a covering array of strength 2."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

Row = dict[str, Any]


def every(axes: Mapping[str, Sequence[Any]]) -> list[Row]:
    """The full product."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def pairs_of(row: Row) -> set[tuple[Any, ...]]:
    """What a row covers."""
    return set(combinations(sorted(row.items()), 2))


def covering(axes: Mapping[str, Sequence[Any]], seed: str) -> list[Row]:
    """Rows such that any two values of two axes meet in one of them.

    Greedy: each row is the one that covers most of what is left. The seed decides between equals, so that tables with
    other seeds hold other rows.
    """
    rows = every(axes)
    random.Random(seed).shuffle(rows)
    covers = [(pairs_of(row), row) for row in rows]
    left = set().union(*(pairs for pairs, _ in covers))
    chosen = []
    while left:
        pairs, row = max(covers, key=lambda each: len(each[0] & left))
        left -= pairs
        chosen.append(row)
    return chosen
