"""One ``overlap bench host`` from settings to table and file."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from overlap.bench.host.report import print_report
from overlap.bench.host.results import HostReport, rows_of
from overlap.bench.host.settings import HostSettings, HostTask, Shape
from overlap.bench.machine import describe_ranks
from overlap.bench.netlab.lab import open_lab
from overlap.bench.netlab.net import parse_net
from overlap.bench.netlab.processes import run_ranks
from overlap.bench.report import make_console
from overlap.jsonfile import check_writable, write_json

WORKER = ("-m", "overlap.bench.host.worker")


def bench_host(settings: HostSettings, path: Path | None) -> HostReport:
    """Measure every world size and shape in a process of its own, print and write.

    Raises:
        ConfigError: ``path`` cannot be written.
        OverlapError: a process failed.
    """
    check_writable("json", path)
    rows = []
    for world, shape in settings.cases():
        print(f"{world} ranks, {shape.units} units of {shape.params} parameters", file=sys.stderr, flush=True)
        rows += rows_of(world, shape, _measure(settings, world, shape))
    report = HostReport({**describe_ranks(), "rounds": settings.rounds}, tuple(rows))
    print_report(report, make_console())
    write_json(path, report.to_dict())
    return report


def _measure(settings: HostSettings, world: int, shape: Shape) -> dict[str, dict[str, float]]:
    with open_lab(parse_net("none"), 1) as lab, TemporaryDirectory(prefix="overlap-host-") as folder:
        out = Path(folder) / "found.json"
        task = HostTask(world=world, units=shape.units, params=shape.params, rounds=settings.rounds, out=str(out))
        run_ranks(lab, [*WORKER, task.to_json()], environment={"OMP_NUM_THREADS": "1"})
        found: dict[str, dict[str, float]] = json.loads(out.read_text(encoding="utf-8"))
    return found
