"""Tables for the terminal: who paid for communication, totals, memory and wire against their formulas.

Every function returns a rich renderable and takes plain data. Figures line up on the decimal point, one unit
per column; what colour says is also said in text.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.markup import escape
from rich.table import Table

from overlap.profiling.metrics import StepMetrics
from overlap.profiling.report_style import bar, byte_scale, figures_table, ms, scaled, tail
from overlap.profiling.unit_metrics import UnitMetrics

_WHOLE_MODEL = "(model)"
_FIGURES_WIDTH = 64
"""Columns that the figures of the per-unit table take; the names get the rest."""
_UNIT_FIGURES = ("reduce", "wire", "hidden", "exposed", "stall")


class LedgerRow(NamedTuple):
    """One line of a prediction and what became of it."""

    name: str
    """What takes the bytes, e.g. "master" or "gather, forward"."""
    predicted: int
    """Bytes by the formula."""
    actual: int
    """Bytes allocated, or counted on the wire."""
    formula: str
    """The formula with its symbols, e.g. "4 P / N"."""


def totals_table(metrics: StepMetrics) -> Table:
    """Where the time of a step went, and the overlap ratio or why there is none."""
    table = figures_table("step", left="", right=("ms", "%"))
    table.add_column("")
    for name, ns in (
        ("compute", metrics.compute_ns),
        ("exposed communication", metrics.exposed_ns),
        ("idle", metrics.idle_ns),
        ("span", metrics.span_ns),
    ):
        share = ns / metrics.span_ns if metrics.span_ns else 0.0
        table.add_row(name, ms(ns), f"{100 * share:.1f}", bar(share), end_section=name in ("idle", "span"))
    table.add_row("communication", ms(metrics.comm_ns), "", f"{metrics.comm_ops} collectives")
    table.add_row("hidden under compute", ms(metrics.hidden_ns), "", _ratio_text(metrics))
    return table


def unit_table(metrics: StepMetrics, width: int = 80) -> Table:
    """Per unit: bytes on the wire, wire time by pass, hidden, exposed, and how long compute waited for it.

    Units may share the wire: the last row counts shared time once, so it can be less than the sum above it.
    """
    total_bytes = sum(unit.bytes for unit in metrics.units)
    divisor, scale = byte_scale([total_bytes])
    heads = ("", scale), ("gather", "fwd"), ("gather", "bwd"), *(("", name) for name in _UNIT_FIGURES)
    right = ["\n".join(head) for head in heads]
    table = figures_table("communication per unit, ms", left="\nunit", right=right)
    for unit in metrics.units:
        name = escape(tail(unit.unit or _WHOLE_MODEL, max(width - _FIGURES_WIDTH, 12)))
        last = unit is metrics.units[-1]
        table.add_row(name, scaled(unit.bytes, divisor), *_unit_cells(unit), end_section=last)
    totals = (metrics.comm_ns, metrics.hidden_ns, metrics.exposed_ns, metrics.stall_ns)
    table.add_row("all", scaled(total_bytes, divisor), "", "", "", *(ms(ns) for ns in totals), style="bold")
    return table


def memory_table(rows: Sequence[LedgerRow | tuple[str, int, int, str]]) -> Table:
    """Memory of this rank: predicted by formula against allocated."""
    return _ledger("memory per rank", "allocated", rows)


def wire_table(rows: Sequence[LedgerRow | tuple[str, int, int, str]]) -> Table:
    """Wire volume of this rank in one step: predicted by formula against counted."""
    return _ledger("wire per rank and step", "counted", rows)


def _ledger(title: str, actual: str, rows: Sequence[LedgerRow | tuple[str, int, int, str]]) -> Table:
    lines = [LedgerRow(*row) for row in rows]
    total = LedgerRow("total", sum(line.predicted for line in lines), sum(line.actual for line in lines), "")
    divisor, scale = byte_scale([total.predicted, total.actual])
    table = figures_table(title, left="", right=(f"predicted {scale}", f"{actual} {scale}", "difference"))
    table.add_column("formula", overflow="fold")
    for line in lines:
        table.add_row(*_ledger_cells(line, divisor), end_section=line is lines[-1])
    table.add_row(*_ledger_cells(total, divisor), style="bold")
    return table


def _ledger_cells(line: LedgerRow, divisor: int) -> tuple[str, ...]:
    predicted, actual = scaled(line.predicted, divisor), scaled(line.actual, divisor)
    difference = _difference(line.actual - line.predicted)
    # "[world, S]" in a formula is text, not markup.
    return escape(line.name), predicted, actual, difference, escape(line.formula)


def _difference(off: int) -> str:
    """In a unit of its own: a few bytes off must not read as +0.00."""
    if off == 0:
        return "="
    divisor, unit_name = byte_scale([abs(off)])
    return f"{'+-'[off < 0]}{scaled(abs(off), divisor)} {unit_name}"


def _unit_cells(unit: UnitMetrics) -> list[str]:
    figures = (*_pass_figures(unit), unit.wire_ns, unit.hidden_ns, unit.exposed_ns, unit.stall_ns)
    return [ms(ns) if ns else "-" for ns in figures]


def _pass_figures(unit: UnitMetrics) -> tuple[int, int, int]:
    """Wire time of the gathers under forward and backward, and of reducing gradients, ns."""
    wire = {one.name: one.wire_ns for one in unit.passes}
    # A gather that no compute followed refreshes weights for the next forward.
    forward = wire.get("forward gather", 0) + wire.get("gather", 0)
    return forward, wire.get("backward gather", 0), wire.get("reduce", 0) + wire.get("replicate", 0)


def _ratio_text(metrics: StepMetrics) -> str:
    if metrics.ratio is None:
        return f"no ratio: {metrics.no_comm_reason}"
    return f"overlap ratio {metrics.ratio:.3f}"
