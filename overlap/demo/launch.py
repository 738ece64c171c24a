"""One process per rank through torch's own elastic launcher; when one fails, one line says why."""

import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, launch_agent

from overlap.errors import OverlapError

EXPECTED = 2
"""Exit code of a worker that met an ``OverlapError``; any other failure is shown with its traceback."""

MISSED_PEER = ("DesyncError", "by peer")
"""How reports of ranks read that lost another: our error, or gloo's "Connection closed by peer"."""

_AGENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def launch(module: str, argument: str, ranks: int) -> None:
    """Run ``python -m module argument`` as ``ranks`` processes of this host and wait for them.

    Raises:
        OverlapError: a rank failed; the others have been stopped.
        SystemExit: Ctrl-C or another signal that ends; all ranks have been stopped.
    """
    _share_cores(ranks)
    _quiet_agent()
    # The folder is where failing ranks leave their reports.
    with TemporaryDirectory(prefix="overlap-") as folder, _signals_given_back():
        try:
            launch_agent(_config(ranks, folder), sys.executable, ["-m", module, argument])
        except ChildFailedError as error:
            rank, failure = _root_cause(error.failures.items())
            raise OverlapError(f"rank {rank}: {_describe(failure)}") from None
        except SignalException as ended:  # while ranks run, the agent has the handlers
            raise SystemExit(128 + ended.sigval) from None


@contextmanager
def _signals_given_back() -> Iterator[None]:
    """The agent handles signals, and leaves its handlers behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _AGENTS_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that C has set cannot be set again from here
                signal.signal(number, handler)


def _config(ranks: int, folder: str) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # port 0: any free one
        local_addr="localhost",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )


def _share_cores(ranks: int) -> None:
    """Split the cores among the ranks: torch's default, one thread each, leaves most of them idle."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // ranks)))


def _quiet_agent() -> None:
    """Silence the agent's own report of a failed child: ``launch`` says the same in one line."""
    agent = logging.getLogger("torch.distributed.elastic")
    agent.addHandler(logging.NullHandler())
    agent.propagate = False


def _root_cause(failures: Iterable[tuple[int, ProcessFailure]]) -> tuple[int, ProcessFailure]:
    """Find who failed first: not a rank that the agent stopped, nor one that only missed its peer."""

    def order(item: tuple[int, ProcessFailure]) -> tuple[bool, bool, int]:
        failure = item[1]
        stopped = failure.exitcode == -signal.SIGTERM
        return stopped, any(sign in _text(failure) for sign in MISSED_PEER), failure.timestamp

    return min(failures, key=order)


def _describe(failure: ProcessFailure) -> str:
    report: Any = failure.message
    if isinstance(report, dict) and failure.exitcode != EXPECTED:
        sys.stderr.write(report["extraInfo"]["py_callstack"])
    return _text(failure)


def _text(failure: ProcessFailure) -> str:
    report: Any = failure.message  # declared str, but a dict when the worker left a report
    return str(report["message"] if isinstance(report, dict) else report)
