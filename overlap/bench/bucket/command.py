"""What ``overlap bench bucket`` does in the process that the user started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from overlap.bench.bucket import report as words
from overlap.bench.bucket.advice import Advice
from overlap.bench.bucket.results import Sweep
from overlap.bench.bucket.settings import SweepSettings, check_share
from overlap.bench.bucket.tables import read_tables
from overlap.bench.collective.ranks import outcome_of
from overlap.bench.netlab.net import Net
from overlap.jsonfile import write_json

WORKER = "overlap.bench.bucket.worker"


def advise(files: Sequence[Path], share: float, json_file: Path | None) -> list[Advice]:
    """Fit every table of the files, print, and keep the file.

    Raises:
        ConfigError: a file cannot be read or holds no table, the other cannot be written, or a share out of range.
    """
    check_share(share)
    advice = [Advice.of(table, share) for path in files for table in read_tables(path)]
    for each in advice:
        print(*each.lines(), sep="\n")
    write_json(json_file, [each.to_dict() for each in advice])
    return advice


def sweep(settings: SweepSettings, net: Net) -> Sweep:
    """Sweep on processes of this host, which print as they go.

    Args:
        settings: what to sweep.
        net: links between the ranks; where it has a rate, each rank is a host of its own.

    Raises:
        ConfigError: the file cannot be written, or links cannot be limited here.
        OverlapError: a rank failed; the others have been stopped.
    """
    found = outcome_of(net, WORKER, settings.ranks, settings.json, lambda path: replace(settings, json=path).to_json())
    swept = Sweep.from_dict(found)
    if net.bits_per_s is not None:  # what its ranks print goes to stderr
        print(*words.opening(swept.machine, swept.settings), *map(words.line, swept.rows), sep="\n")
        print(*words.closing(swept), sep="\n")
    return swept
