"""Each collective belongs to a unit and a pass; each stall to the unit it waited for."""

from overlap.profiling.metrics import measure
from overlap.profiling.timeline import Span
from overlap.profiling.unit_metrics import UnitMetrics

from .conftest import MS, Draw


def wire_by_pass(unit: UnitMetrics) -> dict[str, int]:
    return {one.name: one.wire_ns // MS for one in unit.passes}


def test_units_come_in_order_of_first_appearance(step_of_the_docs: list[Span]) -> None:
    a, b = measure(step_of_the_docs).units
    assert (a.unit, a.wire_ns // MS, a.hidden_ns // MS, a.exposed_ns // MS, a.stall_ns // MS) == (
        "a",
        7,
        1,
        6,
        3,
    )
    assert (b.unit, b.wire_ns // MS, b.hidden_ns // MS, b.exposed_ns // MS, b.stall_ns // MS) == (
        "b",
        8,
        6,
        2,
        1,
    )


def test_a_gather_belongs_to_the_pass_of_the_next_compute_of_its_unit(draw: Draw) -> None:
    # Unit a is let go after its forward and gathered again while b still runs forward: before any backward.
    spans = draw("compute .AABBBBbb.aa\ngather a.bb.aaa....")
    a, b = measure(spans).units
    assert wire_by_pass(a) == {"forward gather": 1, "backward gather": 3}
    assert wire_by_pass(b) == {"forward gather": 2}


def test_micro_batches_alternate_passes(draw: Draw) -> None:
    (a,) = measure(draw("compute .AA.aa.AA.aa\ngather a..a..a..a..")).units
    assert wire_by_pass(a) == {"forward gather": 2, "backward gather": 2}
    assert [one.bytes for one in a.passes] == [2000, 2000]


def test_recompute_is_part_of_the_backward_pass() -> None:
    gather = Span("gather", "gather", "a", 1, 0, 5, 0, 0)
    (a,) = measure([gather, Span("compute", "recompute", "a", 0, 5, 9, 0, 0)]).units
    assert [one.name for one in a.passes] == ["backward gather"]


def test_a_gather_without_compute_after_it_has_no_pass(draw: Draw) -> None:
    (a,) = measure(draw("compute AAA\ngather ...aa")).units
    assert wire_by_pass(a) == {"gather": 2}


def test_a_unit_that_was_only_waited_for_has_a_row(draw: Draw) -> None:
    (a,) = measure(draw("compute ??AA\nhost aa")).units
    assert (a.unit, a.stall_ns, a.wire_ns, a.bytes, a.passes) == ("a", 2 * MS, 0, 0, ())


def test_two_lanes_of_one_unit_share_the_wire_once(draw: Draw) -> None:
    (a,) = measure(draw("reduce aaaa..\nreplicate ..aaaa")).units
    assert a.wire_ns == 6 * MS
    assert wire_by_pass(a) == {"reduce": 4, "replicate": 4}
