"""One ``overlap bench op`` from settings to table and file."""

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from overlap.bench.machine import using_threads
from overlap.bench.op import run
from overlap.bench.overhead import call_costs
from overlap.bench.report import make_console, print_costs, print_report
from overlap.bench.results import Report
from overlap.bench.settings import OpSettings
from overlap.jsonfile import write_json


def bench_ops(settings: OpSettings, path: Path | None) -> Report:
    """Measure, print, and keep ``path`` up to date after every case, so that an interrupted run leaves what it has.

    Raises:
        ConfigError: ``path`` cannot be written, or a face is not there.
    """
    write_json(path, {})
    console = make_console()
    # No spinner: its thread would take turns with what is measured.
    for report in run(settings, partial(print, file=sys.stderr, flush=True)):
        write_json(path, report.to_dict())
    print_report(report, console)
    if settings.overhead:
        with using_threads(settings.threads):
            costs = list(call_costs(settings.ops, settings.faces, torch.device(settings.device)))
        print_costs(costs, console)
        write_json(path, {**report.to_dict(), "overhead": [asdict(cost) for cost in costs]})
    return report
