"""What ``overlap report`` does with a report: print it, write it."""

import json
from pathlib import Path

from rich.console import Console

from overlap.errors import ConfigError, message
from overlap.profiling.rank_report import Report
from overlap.profiling.report_ranks import notes, paying_units_table, rank_table, share_table


def show_report(report: Report, console: Console, json_file: Path | None = None) -> None:
    """Print the tables; write every figure to ``json_file``."""
    console.print(rank_table(report))
    worst = max(report.ranks, key=lambda rank: rank.totals.exposed_comm_ns)
    console.print(share_table(worst))
    console.print(paying_units_table(worst, console.width))
    console.print(notes(report), style="dim")
    if json_file is not None:
        write_text(json_file, json.dumps(report.to_dict(), indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file; refuses a path that cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        cure = "name a file in a folder that exists"
        raise ConfigError(message(str(path), "be a file to write to", str(error), cure)) from error
