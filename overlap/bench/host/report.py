"""The host bench on the terminal."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from overlap.bench.host.results import HostReport, HostRow

FIGURES = (
    "host us",
    "calls",
    "of FSDP2",
    "optimizer us",
    "optimizer calls",
    "launches",
    "of FSDP2",
)


def print_report(report: HostReport, console: Console) -> None:
    """Print what it was measured on, and the rows."""
    for name, value in report.machine.items():
        console.print(f"{name}: {value}", markup=False, highlight=False)
    table = Table(box=SIMPLE, title="per unit and step; host: forward and backward, the plain model's taken off")
    for name in ("ranks", "units", "parameters each"):
        table.add_column(name, justify="right")
    table.add_column("contender")
    for name in FIGURES:
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(str(row.world), str(row.units), str(row.params_per_unit), row.contender, *_figures(row))
    console.print(table)


def _figures(row: HostRow) -> list[str]:
    return [
        f"{row.host_us:.1f}",
        f"{row.python_calls:.0f}",
        _share(row.of_fsdp2_host),
        f"{row.optimizer_us:.1f}",
        f"{row.optimizer_calls:.0f}",
        f"{row.optimizer_launches:.1f}",
        _share(row.of_fsdp2_optimizer),
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
