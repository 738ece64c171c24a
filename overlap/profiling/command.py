"""What ``overlap report`` does: read, measure, explain, print, write, and say whether the gates hold."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from overlap.errors import ConfigError, message
from overlap.jsonfile import write_json, write_text
from overlap.profiling.analysis import Analysis, analyse
from overlap.profiling.bucket_curves import bucket_curves
from overlap.profiling.comparison import comparison_dict, comparison_sheets
from overlap.profiling.gate import Gate
from overlap.profiling.rank_report import report
from overlap.profiling.report_html import page
from overlap.profiling.report_perfetto import analysis_trace
from overlap.profiling.report_sheets import sheets
from overlap.profiling.selection import ReportOptions
from overlap.profiling.sheet import Sheet, markdown, terminal


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Files to write; None writes none."""

    json: Path | None = None
    """The figures per rank and unit; of two runs both, and what changed."""
    details: Path | None = None
    """Everything: communicators, reasons, collectives matched over ranks."""
    markdown: Path | None = None
    """The tables as GitHub shows them."""
    html: Path | None = None
    """One page with timeline, bars, waterfall and curves; works from a file."""
    perfetto: Path | None = None
    """What was measured, and why it was exposed, as a trace for ui.perfetto.dev."""


def report_command(
    paths: Sequence[str],
    options: ReportOptions,
    outputs: Outputs,
    gates: Sequence[str],
    console: Console,
    buckets: Sequence[Path] = (),
) -> bool:
    """Report on one run, or on two of them side by side; whether all gates hold on the last.

    Args:
        paths: one recording, or two.
        options: how to measure.
        outputs: files to write.
        gates: conditions on the last recording.
        console: for tables.
        buckets: ``--json`` files of ``overlap bench bucket``; the page draws them.
    """
    if len(paths) > 2:
        cure = "compare them two by two"
        raise ConfigError(message("paths", "be one run or two", f"{len(paths)} of them", cure))
    conditions = [Gate.parse(gate) for gate in gates]
    curves = _curves(buckets, outputs)
    analyses = [analyse(report(path, options)) for path in paths]
    last = analyses[-1]
    shown = list(sheets(last))
    if len(analyses) == 2:
        shown = comparison_sheets(analyses[0].report, last.report) + shown
    _print(shown, last, console)
    _write(outputs, analyses, shown, curves)
    failures = [line for condition in conditions for line in condition.failures(last.report)]
    for line in failures:
        console.print(Text(f"gate: {line}", style="red"), soft_wrap=True)
    return not failures


def _curves(buckets: Sequence[Path], outputs: Outputs) -> list[dict[str, Any]]:
    if buckets and outputs.html is None:
        raise ConfigError(message("buckets", "come with a page that draws them", "no html", "add --html FILE"))
    return [curve for path in buckets for curve in bucket_curves(path)]


def _print(shown: Sequence[Sheet], analysis: Analysis, console: Console) -> None:
    for sheet in shown:
        console.print(terminal(sheet, console.width))
        console.print()
    for note in analysis.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)


def _write(
    outputs: Outputs, analyses: Sequence[Analysis], shown: Sequence[Sheet], curves: Sequence[dict[str, Any]]
) -> None:
    last = analyses[-1]
    if outputs.json is not None:
        reports = [analysis.report for analysis in analyses]
        write_json(outputs.json, comparison_dict(*reports) if len(reports) == 2 else last.report.to_dict())
    if outputs.details is not None:
        write_json(outputs.details, last.to_dict(), "details")
    if outputs.markdown is not None:
        write_text("markdown", outputs.markdown, "\n".join(map(markdown, shown)))
    if outputs.html is not None:
        write_text("html", outputs.html, page(last, curves))
    if outputs.perfetto is not None:
        write_text("perfetto", outputs.perfetto, json.dumps(analysis_trace(last), separators=(",", ":")) + "\n")
