"""One rank of ``overlap bench collective``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

from overlap.bench.collective import report as words
from overlap.bench.collective.measure import Bench
from overlap.bench.collective.results import Report
from overlap.bench.collective.settings import CollectiveSettings
from overlap.bench.collective.transports import Transport, open_transport
from overlap.bench.machine import describe
from overlap.comm.groups import control_channel
from overlap.comm.volume import Collective
from overlap.demo.worker import run
from overlap.jsonfile import write_json

Open = Callable[[CollectiveSettings], dict[str, Transport]]


def bench_rank(settings: CollectiveSettings, device: torch.device, open_all: Open | None = None) -> int:
    """Measure as one rank of the default process group; rank 0 prints rows as they come and keeps the file up to date.

    Args:
        settings: what to measure.
        device: of this rank's NCCL.
        open_all: opens other transports than those of the settings.

    Returns:
        The exit status: 1 if a value was wrong.
    """
    chosen = device if settings.device == "cuda" else torch.device("cpu")
    transports = (open_all or open_transports)(settings)
    bench = Bench(settings, transports, control_channel(None))
    report = Report(machine_of(chosen), asdict(settings))
    file = None if settings.json is None else Path(settings.json)
    say = printer(dist.get_rank() == 0)
    say(*words.opening(report.machine, report.settings))
    for op in cast(tuple[Collective, ...], settings.collectives):
        say(*words.header(op, transports))
        for datatype in settings.datatypes:
            for rows in bench.rows(op, datatype):
                say(*(words.line(row, len(transports) > 1) for row in rows))
                report = replace(report, rows=(*report.rows, *rows))
                if dist.get_rank() == 0:
                    write_json(file, report.to_dict())
    say(*words.closing(report))
    return 1 if report.wrong else 0


def open_transports(settings: CollectiveSettings) -> dict[str, Transport]:
    """Those of the settings, by name. A collective."""
    cuda = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    own = cuda if settings.device == "cuda" else torch.device("cpu")
    devices = {"gloo": torch.device("cpu"), "nccl": cuda, "overlap": own}
    return {name: open_transport(name, devices[name], settings.redop) for name in settings.transports}


def machine_of(device: torch.device) -> dict[str, str | int]:
    """What is measured on, in words."""
    met = describe(device, torch.get_num_threads(), ())
    return {name: met[name] for name in met if name not in ("faces", "deepspeed")}


def printer(speaks: bool) -> Callable[..., None]:
    """Print lines at once, on the rank that speaks."""

    def say(*lines: str) -> None:
        if speaks and lines:
            print(*lines, sep="\n", flush=True)

    return say


def main(text: str) -> None:
    """Run as a rank that ``command.run_local`` has started: it reads the outcome from the file."""
    settings = CollectiveSettings.from_json(text)

    def job(device: torch.device) -> None:
        bench_rank(settings, device)

    run(job)


if __name__ == "__main__":
    main(sys.argv[1])
