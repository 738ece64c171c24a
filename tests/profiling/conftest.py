"""Timelines written as drawings: one column is one millisecond, one letter names the unit."""

from collections.abc import Callable
from itertools import groupby

import pytest

from overlap.profiling.timeline import Span

MS = 1_000_000
Draw = Callable[..., list[Span]]


def _runs(row: str) -> list[tuple[str, int, int]]:
    """(letter, start, end) of each run of equal letters; dots are silence."""
    runs, at = [], 0
    for letter, run in groupby(row):
        end = at + len(list(run))
        if letter != ".":
            runs.append((letter, at, end))
        at = end
    return runs


def _compute_kind(letter: str) -> str:
    if letter == "?":
        return "stall"
    return "forward" if letter.isupper() else "backward"


def _spans(lane: str, row: str, step: int, rank: int, origin_ns: int) -> list[Span]:
    spans = []
    runs = _runs(row)
    for place, (letter, start, end) in enumerate(runs):
        kind = _compute_kind(letter) if lane == "compute" else lane
        # A stall waits for the unit that computes next.
        unit = runs[place + 1][0].lower() if letter == "?" else letter.lower()
        begin, finish = origin_ns + start * MS, origin_ns + end * MS
        spans.append(Span(lane, kind, unit, 1000, begin, finish, step, rank))
    return spans


@pytest.fixture
def draw() -> Draw:
    """``draw('''compute ??AA\\ngather aa''')`` -> spans; upper case forward, lower case backward, ? stall."""

    def drawn(picture: str, *, step: int = 0, rank: int = 0, origin_ns: int = 5 * MS) -> list[Span]:
        rows = [line.split() for line in picture.strip().splitlines()]
        return [span for lane, row in rows for span in _spans(lane, row, step, rank, origin_ns)]

    return drawn


@pytest.fixture
def step_of_the_docs(draw: Draw) -> list[Span]:
    """The step drawn in docs/metrics.md."""
    return draw(
        """
        compute   ???AAAA?BBB.bbbb.aaaa...
        gather    aaabbbbb................
        reduce    ................bbb.aaaa
        """
    )
