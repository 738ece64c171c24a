"""All ranks of a bench on this host, and the file that they leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from overlap.bench.jsonfile import write
from overlap.bench.netlab.lab import open_lab
from overlap.bench.netlab.net import Net
from overlap.bench.netlab.processes import run_ranks
from overlap.demo.launch import launch
from overlap.errors import ConfigError, message


def run_on(net: Net, module: str, argument: str, ranks: int) -> None:
    """Run ``python -m module argument`` once per rank and wait for all.

    Args:
        net: none, or the rate of the links; then each rank is a host of its own, and prints to stderr.
        module: of a rank.
        argument: of all of them.
        ranks: how many.

    Raises:
        ConfigError: links cannot be limited here.
        OverlapError: a rank failed; the others have been stopped.
    """
    if net.bits_per_s is None:
        launch(module, argument, ranks)
        return
    with open_lab(net, ranks) as lab:
        if lab.note is not None:
            rule, cure = "have links of their own", "run as root with iproute2, or leave --net out"
            raise ConfigError(message("ranks behind --net", rule, lab.note, cure))
        run_ranks(lab, ["-m", module, argument], environment={"OMP_NUM_THREADS": "1"})


@contextmanager
def report_file(asked: str | None) -> Iterator[Path]:
    """The file that was asked for, emptied, else one of ours.

    Raises:
        ConfigError: it cannot be written.
    """
    if asked is None:
        with TemporaryDirectory(prefix="overlap-bench-") as folder:
            yield Path(folder) / "report.json"
        return
    path = Path(asked)
    write(path, "")  # a run that fails leaves no report of an earlier one
    yield path
