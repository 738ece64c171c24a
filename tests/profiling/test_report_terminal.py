"""Tables line up, fit 80 columns, read without colour and lose no digit that matters."""

import io

from rich.console import Console, RenderableType

from overlap.profiling.metrics import measure
from overlap.profiling.report_terminal import LedgerRow, memory_table, totals_table, unit_table, wire_table
from overlap.profiling.timeline import Span

from .conftest import Draw


def lines(renderable: RenderableType, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(width=width, file=out).print(renderable)
    assert "\x1b" not in out.getvalue()
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_totals_of_the_step_in_the_docs(step_of_the_docs: list[Span]) -> None:
    assert lines(totals_table(measure(step_of_the_docs))) == [
        "step",
        "                          ms      %",
        "───────────────────────────────────────────────────────────────────",
        "compute                15.00   62.5  ██████████████████▊",
        "exposed communication   8.00   33.3  ██████████",
        "idle                    1.00    4.2  █▎",
        "───────────────────────────────────────────────────────────────────",
        "span                   24.00  100.0  ██████████████████████████████",
        "───────────────────────────────────────────────────────────────────",
        "communication          15.00         4 collectives",
        "hidden under compute    7.00         overlap ratio 0.467",
    ]


def test_per_unit_rows_of_the_step_in_the_docs(step_of_the_docs: list[Span]) -> None:
    assert lines(unit_table(measure(step_of_the_docs))) == [
        "communication per unit, ms",
        "            gather  gather",
        "unit    kB     fwd     bwd  reduce   wire  hidden  exposed  stall",
        "─────────────────────────────────────────────────────────────────",
        "a     2.00    3.00       -    4.00   7.00    1.00     6.00   3.00",
        "b     2.00    5.00       -    3.00   8.00    6.00     2.00   1.00",
        "─────────────────────────────────────────────────────────────────",
        "all   4.00                          15.00    7.00     8.00   4.00",
    ]


def test_without_communication_the_reason_stands_where_the_ratio_would(draw: Draw) -> None:
    metrics = measure(draw("compute AAbb"))
    assert lines(totals_table(metrics))[-1].endswith("  no ratio: no collective ran in this window")
    assert lines(unit_table(metrics))[-1].split() == ["all", "0", "0.00", "0.00", "0.00", "0.00"]


def test_long_names_keep_their_end_and_the_table_its_width() -> None:
    unit = "model.decoder.transformer.layers.31"
    spans = [Span("gather", "gather", unit, 123_456_789_012, 0, 999_990_000, 0, 0)]
    narrow, wide = (lines(unit_table(measure(spans), width), width) for width in (80, 100))
    assert max(map(len, narrow)) <= 80
    assert narrow[4].startswith("…ormer.layers.31  123.46  999.99")
    assert wide[4].startswith(unit)


def test_memory_shows_each_difference_in_its_own_unit() -> None:
    rows = [
        LedgerRow("master", 32_000_000, 32_000_000, "4 P / N"),
        LedgerRow("slots", 12_000_000, 12_000_256, "2 [world, S]"),
        ("m, v", 64_000_000, 63_000_000, "8 P / N"),
    ]
    assert lines(memory_table(rows)) == [
        "memory per rank",
        "        predicted MB  allocated MB  difference  formula",
        "────────────────────────────────────────────────────────────",
        "master         32.00         32.00           =  4 P / N",
        "slots          12.00         12.00      +256 B  2 [world, S]",
        "m, v           64.00         63.00    -1.00 MB  8 P / N",
        "────────────────────────────────────────────────────────────",
        "total         108.00        107.00  -999.74 kB",
    ]


def test_wire_counts_plain_bytes_without_a_fraction() -> None:
    rows = [("gather, forward", 96, 96, "2 P (N-1)/N"), ("reduce", 48, 48, "P (N-1)/N")]
    assert lines(wire_table(rows)) == [
        "wire per rank and step",
        "                 predicted B  counted B  difference  formula",
        "────────────────────────────────────────────────────────────────",
        "gather, forward           96         96           =  2 P (N-1)/N",
        "reduce                    48         48           =  P (N-1)/N",
        "────────────────────────────────────────────────────────────────",
        "total                    144        144           =",
    ]


def test_an_empty_ledger_has_a_total() -> None:
    assert lines(memory_table([]))[-1].split() == ["total", "0", "0", "="]
