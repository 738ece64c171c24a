"""The step bench on the terminal."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from overlap.bench.step.results import Row, StepReport

FIGURES = ("step ms", "exposed ms", "x floor", "x ideal", "wire MB", "peak MB", "ours is", "last loss", "loss error")


def print_report(report: StepReport, console: Console) -> None:
    """Print what it was measured on, the rows, and what is wrong."""
    for name, value in report.machine.items():
        console.print(f"{name}: {value}", markup=False, highlight=False)
    console.print(f"net: {report.net}, {report.ranks} ranks", highlight=False)
    console.print(_table(report))
    for row in report.rows:
        if row.skipped is not None:
            console.print(f"{row.contender}: skipped, {row.skipped}", markup=False, highlight=False)
        if row.wrong is not None:
            console.print(f"{row.contender}: {row.wrong}", style="bold red", markup=False, highlight=False)
    state = "none" if not report.wrong else ", ".join(report.wrong)
    console.print(f"computed something else: {state}", style="bold red" if report.wrong else "green")


def _table(report: StepReport) -> Table:
    table = Table(box=SIMPLE)
    for name in ("contender", "stage", "dtype"):
        table.add_column(name)
    for name in FIGURES:
        table.add_column(name, justify="right")
    for row in report.rows:
        stage = "" if row.stage is None else str(row.stage)
        table.add_row(row.contender, stage, row.dtype, *_figures(row), style="red" if row.wrong else None)
    return table


def _figures(row: Row) -> list[str]:
    if row.skipped is not None:
        return ["skipped"]
    return [
        _text(row.step_ms, ".1f"),
        _text(row.exposed_ms, ".1f"),
        _text(row.over_floor, ".2f"),
        _text(row.over_ideal, ".2f"),
        _text(row.wire_bytes, ".1f", 1e-6),
        _text(row.peak_bytes, ".0f", 1e-6),
        f"{row.ours_speedup:.2f}x {'faster' if row.ours_speedup >= 1 else 'as fast'}" if row.ours_speedup else "",
        _text(row.loss_last, ".6f"),
        _text(row.loss_error, ".1e"),
    ]


def _text(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else format(value * scale, form)
