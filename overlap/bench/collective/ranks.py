"""All ranks of a bench on this host, and the file that they leave."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from overlap.bench.netlab.lab import open_lab
from overlap.bench.netlab.net import Net
from overlap.bench.netlab.processes import run_ranks
from overlap.demo.launch import launch
from overlap.errors import ConfigError, message
from overlap.jsonfile import check_writable


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


def outcome_of(net: Net, module: str, ranks: int, file: str | None, argument: Callable[[str], str]) -> Any:
    """Let ranks write what they have found as JSON, and read it.

    Args:
        net: as in `run_on`.
        module: of a rank.
        ranks: how many.
        file: that was asked for; None takes one of ours.
        argument: of all ranks, once it is known where they write.

    Raises:
        ConfigError: the file cannot be written, or links cannot be limited here.
        OverlapError: a rank failed; the others have been stopped.
    """
    with _report_file(file) as path:
        run_on(net, module, argument(str(path)), ranks)
        return json.loads(path.read_text(encoding="utf-8"))


@contextmanager
def _report_file(asked: str | None) -> Iterator[Path]:
    """The file that was asked for, emptied, else one of ours.

    Raises:
        ConfigError: it cannot be written.
    """
    if asked is None:
        with TemporaryDirectory(prefix="overlap-bench-") as folder:
            yield Path(folder) / "report.json"
        return
    path = Path(asked)
    check_writable("json", path)
    yield path
