"""The op bench on the terminal."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from overlap.bench.overhead import CallCost
from overlap.bench.results import KINDS, Report, Row

PLAIN_WIDTH = 240
"""Columns where output is no terminal: wide enough that no cell is cut."""


def make_console() -> Console:
    """Return a console for stdout that cuts no table when it is a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def print_report(report: Report, console: Console) -> None:
    """Print machine, bandwidths, rows, and what is missing."""
    for name, value in report.machine.items():
        shown = ", ".join(f"{kind} by {way}" for kind, way in value.items()) if isinstance(value, dict) else value
        console.print(f"{name}: {shown}", markup=False, highlight=False)
    speeds = [f"{kind} {speed:.1f}" for kind in KINDS if (speed := report.bandwidth(kind)) is not None]
    console.print(f"memory in GB/s (median over the rows): {', '.join(speeds)}", highlight=False)
    console.print(_table(report))
    for peer, reason in sorted({(row.peer, row.peer_missing) for row in report.rows if row.peer_missing}):
        console.print(f"{peer}: {reason}", markup=False, highlight=False)
    if report.left_out:
        console.print(f"not measured, out of time: {', '.join(report.left_out)}", highlight=False)
    console.print(f"wrong values: {report.wrong}", style="green" if report.wrong == 0 else "bold red")


def _table(report: Report) -> Table:
    table = Table(box=SIMPLE)
    for name in ("op", "variant", "dtype"):
        table.add_column(name)
    for name in ("elements", "MB moved"):
        table.add_column(name, justify="right")
    table.add_column("face")
    for name in ("ms", "GB/s", "of machine"):
        table.add_column(name, justify="right")
    table.add_column("peer")
    for name in ("peer ms", "speedup", "wrong"):
        table.add_column(name, justify="right")
    before = None
    for row in report.rows:
        own = _own_cells(row)
        table.add_row(*(own if own != before else [""] * len(own)), *_peer_cells(row), f"{row.wrong:,}")
        before = own
    return table


def _own_cells(row: Row) -> list[str]:
    """What is the same beside every peer."""
    share = f"{100 * row.fraction:.0f} % of {row.bound}"
    figures = [f"{row.ms:.3f}", f"{row.gbps:.1f}", share]
    return [row.op, row.variant, row.dtype, f"{row.elements:,}", f"{row.bytes / 1e6:,.1f}", row.face, *figures]


def _peer_cells(row: Row) -> list[str]:
    if row.peer is None:
        return ["none", "", ""]
    if row.peer_ms is None or row.speedup_vs_peer is None:
        return [row.peer, "missing", ""]
    return [row.peer, f"{row.peer_ms:.3f}", f"{row.speedup_vs_peer:.2f}x"]


def print_costs(costs: list[CallCost], console: Console) -> None:
    """Print what a call costs before its first byte."""
    table = Table(box=SIMPLE, title="per-call overhead, ns")
    table.add_column("op")
    for name in ("elements", "face alone", "through overlap.ops", "extension, nothing to do"):
        table.add_column(name, justify="right")
    for cost in costs:
        figures = (cost.face_ns, cost.public_ns, cost.extension_ns)
        cells = ["" if figure is None else f"{figure:,.0f}" for figure in figures]
        table.add_row(f"{cost.op} ({cost.face})", str(cost.elements), *cells)
    console.print(table)
