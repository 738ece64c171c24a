"""One ``overlap bench op`` from settings to table and file."""

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from overlap.bench.machine import using_threads
from overlap.bench.op import run
from overlap.bench.overhead import call_costs
from overlap.bench.report import make_console, print_costs, print_report
from overlap.bench.results import Report
from overlap.bench.settings import OpSettings
from overlap.errors import ConfigError, message


def bench_ops(settings: OpSettings, path: Path | None) -> Report:
    """Measure, print, and keep ``path`` up to date after every case, so that an interrupted run leaves what it has.

    Raises:
        ConfigError: ``path`` cannot be written, or a face is not there.
    """
    _write(path, {})
    console = make_console()
    # No spinner: its thread would take turns with what is measured.
    for report in run(settings, partial(print, file=sys.stderr, flush=True)):
        _write(path, report.to_dict())
    print_report(report, console)
    if settings.overhead:
        with using_threads(settings.threads):
            costs = list(call_costs(settings.ops, settings.faces, torch.device(settings.device)))
        print_costs(costs, console)
        _write(path, {**report.to_dict(), "overhead": [asdict(cost) for cost in costs]})
    return report


def _write(path: Path | None, data: dict[str, Any]) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        cure = "choose another file"
        raise ConfigError(message("json", "be a file to write to", f"{path} ({error.strerror})", cure)) from None
