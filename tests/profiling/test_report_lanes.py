"""The drawing is to scale, labelled, legible without colour, and never wider than asked."""

import pytest

from overlap.errors import ConfigError
from overlap.profiling.report_lanes import draw_lanes
from overlap.profiling.timeline import Span

from .conftest import MS, Draw


def test_a_step_at_four_columns_per_millisecond(draw: Draw) -> None:
    spans = draw("compute ??AABB.bbaa\ngather aabb...bb..\nreduce .........bb")
    assert draw_lanes(spans, width=8 + 4 * 11).splitlines() == [
        "compute ░░░░░░░░▏F0    ▕▏F1    ▕    ▏B1    ▕▏B0    ▕",
        "gather  ▏AG0   ▕▏AG1   ▕            ▏AG1   ▕",
        "reduce                                      ▏RS1   ▕",
        "        0                                   11.00 ms",
        "░=stall  0=a  1=b",
    ]


def test_labels_shrink_with_the_boxes(draw: Draw) -> None:
    spans = draw("gather aaaaabbbbccc.d" + "." * 7, origin_ns=0) + draw("compute " + "." * 27 + "A", origin_ns=0)
    assert draw_lanes(spans, width=8 + 28).splitlines()[1] == "gather  ▏AG0▕▏AG1▏2▕ 3"


def test_lanes_keep_their_order_and_the_whole_model_has_no_number(draw: Draw) -> None:
    update = Span("compute", "update", "", 0, 30 * MS, 60 * MS, 0, 0)
    spans = [*draw("disk " + "a" * 30, origin_ns=0), *draw("gather " + "a" * 30, origin_ns=0), update]
    drawing = draw_lanes(spans, width=80).splitlines()
    assert [line.split()[0] for line in drawing[:3]] == ["compute", "gather", "disk"]
    assert "▏U  " in drawing[0]
    assert drawing[-1] == "0=a"


@pytest.mark.parametrize("width", [80, 100])
def test_a_crowded_step_stays_within_the_width(draw: Draw, width: int) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    spans = draw(f"gather {letters * 9}\ncompute ..{letters.upper() * 9}{letters}")
    lines = draw_lanes(spans, width).splitlines()
    assert max(len(line) for line in lines) <= width


def test_a_step_of_no_length_is_drawn() -> None:
    assert draw_lanes([Span("compute", "forward", "a", 0, 7, 7, 0, 0)], width=40).startswith("compute 0\n")


def test_ranks_are_drawn_one_by_one(draw: Draw) -> None:
    with pytest.raises(ConfigError, match="window must be of one rank"):
        draw_lanes([*draw("compute A", rank=0), *draw("compute A", rank=1)])
