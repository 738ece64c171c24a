"""Tables for the terminal: what each rank did with its time, and which units paid for communication."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from overlap.profiling.rank_report import NO_UNIT, RankReport, Report, UnitRow
from overlap.profiling.report_style import bar, figures_table, ms, tail

_FIGURES_WIDTH = 52
"""Columns that the figures of the per-unit table take; the names get the rest."""
_UNITS_SHOWN = 20


def rank_table(report: Report) -> Table:
    """A row per rank: its span, what filled it, and the overlap ratio or why there is none."""
    heads = ("span ms", "compute", "comm", "exposed\ncomm", "exposed\ncopies", "idle", "overlap\nratio")
    table = figures_table("where the time went, per rank", left="rank", right=heads)
    for rank in report.ranks:
        totals = rank.totals
        parts = (totals.span_ns, totals.compute_ns, totals.comm_ns)
        rest = (totals.exposed_comm_ns, totals.exposed_copy_ns, totals.idle_ns)
        ratio = "-" if totals.ratio is None else f"{totals.ratio:.3f}"
        table.add_row(str(rank.rank), *(ms(ns) for ns in (*parts, *rest)), ratio)
    return table


def share_table(rank: RankReport) -> Table:
    """The parts of one rank's span, which add up to it."""
    totals = rank.totals
    table = figures_table(f"rank {rank.rank}", left="", right=("ms", "%"))
    table.add_column("")
    for name, ns in (
        ("compute", totals.compute_ns),
        ("exposed communication", totals.exposed_comm_ns),
        ("exposed copies", totals.exposed_copy_ns),
        ("idle", totals.idle_ns),
        ("span", totals.span_ns),
    ):
        share = ns / totals.span_ns if totals.span_ns else 0.0
        table.add_row(name, ms(ns), f"{100 * share:.1f}", bar(share), end_section=name in ("idle", "span"))
    ratio = f"no ratio: {totals.no_comm_reason}" if totals.ratio is None else f"overlap ratio {totals.ratio:.3f}"
    table.add_row("communication", ms(totals.comm_ns), "", f"{totals.comm_ops} collectives")
    table.add_row("hidden under compute", ms(totals.hidden_comm_ns), "", ratio)
    return table


def paying_units_table(rank: RankReport, width: int = 80) -> Table:
    """The units with the most exposed communication, then those that compute most."""
    rows = sorted(rank.units, key=lambda row: (-row.exposed_comm_ns, -row.comm_ns, -row.compute_ns))
    title = f"per unit, rank {rank.rank}, ms"
    if len(rows) > _UNITS_SHOWN:
        title += f" (the {_UNITS_SHOWN} that pay most of {len(rows)}; --json has all)"
    table = figures_table(title, left="unit", right=("ops", "comm", "hidden", "exposed", "compute"))
    for row in rows[:_UNITS_SHOWN]:
        name = escape(tail(row.unit or NO_UNIT, max(width - _FIGURES_WIDTH, 12)))
        table.add_row(name, str(row.comm_ops), *_figures(row))
    return table


def notes(report: Report) -> Text:
    """What sources lack and what was assumed, each once."""
    lines = dict.fromkeys(note for rank in report.ranks for note in rank.recording.notes)
    return Text("\n".join(f"note: {line}" for line in lines))


def _figures(row: UnitRow) -> Iterable[str]:
    return (ms(ns) if ns else "-" for ns in (row.comm_ns, row.hidden_comm_ns, row.exposed_comm_ns, row.compute_ns))
