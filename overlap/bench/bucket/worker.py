"""One rank of a sweep."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist

from overlap.bench.bucket import report as words
from overlap.bench.bucket.results import Sweep
from overlap.bench.bucket.settings import SweepSettings
from overlap.bench.bucket.sweep import Sweeper
from overlap.bench.collective.worker import machine_of, open_transports, printer
from overlap.comm.groups import control_channel
from overlap.demo.worker import run
from overlap.jsonfile import write_json


def sweep_rank(settings: SweepSettings, device: torch.device) -> None:
    """Sweep as one rank of the default process group; rank 0 prints rows as they come and keeps the file up to date.

    Args:
        settings: what to sweep.
        device: of this rank's NCCL.
    """
    transport = open_transports(settings.call)[settings.transport]
    sweeper = Sweeper(settings, transport, control_channel(None))
    sweep = Sweep(machine_of(transport.device), asdict(settings))
    file = None if settings.json is None else Path(settings.json)
    say = printer(dist.get_rank() == 0)
    say(*words.opening(sweep.machine, sweep.settings))
    for row in sweeper.rows():
        say(words.line(row))
        sweep = replace(sweep, rows=(*sweep.rows, row))
        if dist.get_rank() == 0:
            write_json(file, {**sweep.to_dict(), "advice": words.advice_of(sweep).to_dict()})
    sweeper.close()
    say(*words.closing(sweep))


if __name__ == "__main__":
    chosen = SweepSettings.from_json(sys.argv[1])
    run(lambda device: sweep_rank(chosen, device))
