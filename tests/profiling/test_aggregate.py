"""Ranks merge into one timeline and stay apart in the measurement; medians go field by field."""

import pytest

from overlap.errors import StateError
from overlap.profiling.aggregate import median_step, per_step, summarize
from overlap.profiling.metrics import measure
from overlap.profiling.timeline import Timeline

from .conftest import MS, Draw


def test_merged_ranks_are_measured_one_by_one(draw: Draw) -> None:
    merged = Timeline()
    merged.extend(draw("compute ..AA\ngather aa..", rank=0, step=1))
    merged.extend(draw("compute .AA\ngather aaa", rank=1, step=1))
    merged.extend(draw("compute AA", rank=1, step=2))
    measured = per_step(merged)
    assert list(measured) == [(0, 1), (1, 1), (1, 2)]
    assert [one.exposed_ns // MS for one in measured.values()] == [2, 1, 0]
    assert list(per_step(merged, steps=[2])) == [(1, 2)]


def test_the_median_is_taken_field_by_field(draw: Draw) -> None:
    timeline = Timeline()
    for step, picture in enumerate(["gather aaa\ncompute ...A", "gather a\ncompute .A", "gather aaaaaaaaa\ncompute A"]):
        timeline.extend(draw(picture, step=step, origin_ns=step * 100 * MS))
    middle = summarize(timeline)
    assert (middle.comm_ns // MS, middle.span_ns // MS, middle.hidden_ns // MS) == (3, 4, 0)
    assert middle.units[0].wire_ns == 3 * MS
    assert middle.units[0].passes[0].name == "forward gather"
    assert summarize(timeline, steps=[1, 2]).comm_ns == 5 * MS


def test_the_median_of_one_step_is_that_step(draw: Draw) -> None:
    one = measure(draw("compute ??AAbb\ngather aabb\nreduce .....aa"))
    assert median_step([one]) == one


def test_a_unit_silent_in_most_steps_has_a_median_of_zero(draw: Draw) -> None:
    loud, silent = measure(draw("compute AA\ngather b.\nreduce .a")), measure(draw("compute AA\ngather b."))
    units = {unit.unit: unit.wire_ns for unit in median_step([silent, loud, silent]).units}
    assert units == {"b": MS, "a": 0}


def test_no_step_has_no_median() -> None:
    with pytest.raises(StateError, match="median must be taken of at least one step"):
        summarize(Timeline())
