"""Known answers from drawings, and sums that hold for any spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.errors import ConfigError, StateError
from overlap.profiling.metrics import StepMetrics, measure
from overlap.profiling.timeline import LANES, Span

from .conftest import MS, Draw


def in_ms(metrics: StepMetrics) -> dict[str, float]:
    return {key: value for key, value in metrics.to_dict().items() if key.endswith("_ms")}


def test_the_step_drawn_in_the_docs(step_of_the_docs: list[Span]) -> None:
    metrics = measure(step_of_the_docs)
    assert in_ms(metrics) == {
        "span_ms": 24,
        "compute_ms": 15,
        "comm_ms": 15,
        "hidden_ms": 7,
        "exposed_ms": 8,
        "idle_ms": 1,
        "stall_ms": 4,
    }
    assert metrics.ratio == pytest.approx(7 / 15)
    assert metrics.no_comm_reason is None
    assert metrics.comm_ops == 4


def test_the_dictionary_has_the_documented_keys(step_of_the_docs: list[Span]) -> None:
    report = measure(step_of_the_docs).to_dict()
    totals = {"ratio", "exposed_ms", "comm_ms", "hidden_ms", "compute_ms", "idle_ms", "stall_ms", "span_ms"}
    assert set(report) == totals | {"no_comm_reason", "per_unit"}
    a, b = report["per_unit"]
    row = {"unit": "a", "bytes": 2000, "wire_ms": 7, "hidden_ms": 1, "exposed_ms": 6, "stall_ms": 3}
    assert {key: a[key] for key in row} == row
    assert [(one["pass"], one["wire_ms"]) for one in b["passes"]] == [("forward gather", 5), ("reduce", 3)]


def test_lanes_that_overlap_count_once(draw: Draw) -> None:
    metrics = measure(
        draw(
            """
            compute   ..AAAA....
            gather    aaaaaa....
            reduce    ..bbbbbb..
            replicate ....cccccc
            """
        )
    )
    assert in_ms(metrics)["comm_ms"] == 10
    assert in_ms(metrics)["hidden_ms"] == 4
    assert sum(unit.wire_ns for unit in metrics.units) == 18 * MS


def test_host_and_disk_are_neither_compute_nor_communication(draw: Draw) -> None:
    metrics = measure(draw("compute AA....BB\nhost ..aaaa..\ndisk ....aaaaaa"))
    assert in_ms(metrics)["idle_ms"] == 6
    assert in_ms(metrics)["span_ms"] == 10
    assert metrics.ratio is None


def test_without_communication_there_is_a_reason_and_no_ratio(draw: Draw) -> None:
    metrics = measure(draw("compute AAbb"))
    assert metrics.ratio is None
    assert metrics.no_comm_reason == "no collective ran in this window"
    assert metrics.units == ()


def test_collectives_of_no_length_give_no_ratio_but_their_own_reason() -> None:
    compute = Span("compute", "forward", "a", 0, 0, 5, 0, 0)
    metrics = measure([compute, Span("gather", "gather", "a", 8, 3, 3, 0, 0)])
    assert metrics.ratio is None
    assert metrics.no_comm_reason == "every collective took 0 ns"
    assert metrics.units[0].bytes == 8


def test_one_span_of_no_length_is_a_window_of_no_length() -> None:
    metrics = measure([Span("compute", "forward", "a", 0, 7, 7, 0, 0)])
    assert (metrics.span_ns, metrics.compute_ns, metrics.idle_ns) == (0, 0, 0)


def test_a_window_over_two_steps_hides_what_each_step_alone_cannot(draw: Draw) -> None:
    first = draw("compute AA..\nreduce ..aa", step=0, origin_ns=0)
    second = draw("compute AA", step=1, origin_ns=2 * MS)
    assert measure(first).exposed_ns == 2 * MS
    assert measure([*first, *second]).exposed_ns == 0


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(StateError, match="window must hold at least one span"):
        measure([])


def test_ranks_are_not_mixed(draw: Draw) -> None:
    with pytest.raises(ConfigError, match=r"window must be of one rank, but got ranks \[0, 1\]"):
        measure([*draw("compute A", rank=0), *draw("compute A", rank=1)])


def test_a_span_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ConfigError, match="end at or after its start"):
        measure([Span("gather", "gather", "a", 1, 10, 9, 0, 0)])


SPANS = st.builds(
    lambda lane, kind, unit, start, size: Span(lane, kind, unit, size, start, start + size, 0, 0),
    st.sampled_from(LANES),
    st.sampled_from(["forward", "backward", "stall", "gather"]),
    st.sampled_from(["", "a", "b"]),
    st.integers(0, 60),
    st.integers(0, 20),
)


@given(st.lists(SPANS, min_size=1, max_size=25))
def test_the_sums_hold_for_any_spans(spans: list[Span]) -> None:
    metrics = measure(spans)
    assert metrics.compute_ns + metrics.exposed_ns + metrics.idle_ns == metrics.span_ns
    assert metrics.hidden_ns + metrics.exposed_ns == metrics.comm_ns
    assert metrics.ratio is None or 0 <= metrics.ratio <= 1
    assert (metrics.ratio is None) == (metrics.no_comm_reason is not None)
    for unit in metrics.units:
        assert unit.hidden_ns + unit.exposed_ns == unit.wire_ns <= metrics.comm_ns
        assert unit.stall_ns <= metrics.stall_ns
        assert sum(one.bytes for one in unit.passes) == unit.bytes
        assert sum(one.wire_ns for one in unit.passes) >= unit.wire_ns
