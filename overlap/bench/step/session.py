"""One ``overlap bench step`` from settings to table, file and plot."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from overlap.bench.machine import describe_ranks
from overlap.bench.netlab.lab import Lab, open_lab
from overlap.bench.netlab.processes import run_ranks
from overlap.bench.report import make_console
from overlap.bench.step.plot import check_plot, draw
from overlap.bench.step.report import print_report
from overlap.bench.step.results import Outcome, StepReport
from overlap.bench.step.rows import rows_of
from overlap.bench.step.settings import StepSettings
from overlap.bench.step.task import Task
from overlap.jsonfile import check_writable, write_json

WORKER = ("-m", "overlap.bench.step.worker")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}


def bench_steps(settings: StepSettings, json_path: Path | None, plot_path: Path | None) -> StepReport:
    """Measure, print and write; an interrupted run leaves the figures that it has.

    Raises:
        ConfigError: a file cannot be written, or a plot not drawn.
        OverlapError: a rank failed.
    """
    check_plot(plot_path)
    for name, path in (("json", json_path), ("plot", plot_path)):
        check_writable(name, path)
    with open_lab(settings.link, settings.ranks) as lab, TemporaryDirectory(prefix="overlap-step-") as folder:
        if lab.note is not None:
            print(lab.note, file=sys.stderr)
        for report in _measure(settings, lab, Path(folder)):
            _write(report, json_path, plot_path)
    print_report(report, make_console())
    return report


def _write(report: StepReport, json_path: Path | None, plot_path: Path | None) -> None:
    write_json(json_path, report.to_dict())
    if plot_path is not None:
        draw(report, plot_path)


def _measure(settings: StepSettings, lab: Lab, folder: Path) -> Iterator[StepReport]:
    """Yield the report once with everything but memory, then after each contender's memory."""
    task = Task(
        settings=settings,
        interface=lab.interface,
        own_hosts=lab.limited == "links",
        communicator_rate=lab.net.payload_bytes_per_s if lab.limited == "communicator" else None,
        batch=settings.batch,
        out=str(folder / "found.json"),
    )
    found = _run(lab, task)
    outcomes = [Outcome(**outcome) for outcome in found["outcomes"]]
    report = StepReport(lab.net.name, lab.ranks, _machine(settings, lab, found), rows_of(settings, outcomes, {}))
    yield report
    peaks: dict[str, Any] = {}
    for outcome in outcomes:
        if settings.memory and outcome.skipped is None:
            print(f"memory of {outcome.contender}", file=sys.stderr, flush=True)
            peaks[outcome.contender] = _run(lab, replace(task, batch=found["batch"], memory_of=outcome.contender))
            yield replace(report, rows=rows_of(settings, outcomes, peaks))


def _run(lab: Lab, task: Task) -> dict[str, Any]:
    run_ranks(lab, [*WORKER, task.to_json()], environment=ENVIRONMENT)
    found: dict[str, Any] = json.loads(Path(task.out).read_text(encoding="utf-8"))
    return found


def _machine(settings: StepSettings, lab: Lab, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **describe_ranks(),
        "limited": lab.limited,
        "note": lab.note,
        "link_bytes_per_s": lab.net.payload_bytes_per_s,
        "segment_bytes": lab.segment_bytes,
        "params": found["params"],
        "size": settings.size,
        "batch_per_rank": found["batch"],
        "rounds": settings.rounds,
        "steps_per_round": settings.steps,
        "tolerance": settings.tolerance,
    }
