"""One process per host: started together, ended together, the first failure told."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from overlap.bench.netlab.lab import Lab
from overlap.demo.launch import MISSED_PEER
from overlap.errors import OverlapError

POLL_S = 0.05
GRACE_S = 2.0
"""From the request to end until a rank is killed."""
TAIL_LINES = 30
TO_OUR_STDERR = 2


def run_ranks(
    lab: Lab, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout_s: float = 3600.0
) -> None:
    """Run ``python ARGUMENTS`` once on every host and wait for all.

    What ranks print goes to this process's stderr; what they write to stderr is shown if they fail.

    Args:
        lab: the hosts.
        arguments: of this Python.
        environment: more variables, beside the launcher's.
        timeout_s: of all together.

    Raises:
        OverlapError: a rank failed or was late; the others have been stopped.
    """
    with TemporaryDirectory(prefix="overlap-ranks-") as folder, ExitStack() as stack:
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(lab.ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_stop, processes)
        for rank, log in enumerate(logs):
            command = lab.command(rank, [sys.executable, *arguments], environment or {})
            errors = stack.enter_context(log.open("wb"))
            # A session of its own: Ctrl-C reaches this process alone, which then stops the ranks.
            processes.append(subprocess.Popen(command, stdout=TO_OUR_STDERR, stderr=errors, start_new_session=True))
        failed = _wait(processes, time.monotonic() + timeout_s)
        if failed:
            raise OverlapError(_describe(min(failed, key=lambda rank: _only_lost_a_peer(logs[rank])), processes, logs))


def _wait(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> list[int]:
    """Wait until all have ended well (no rank), or some have failed or are late (those)."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        running = [rank for rank, code in enumerate(codes) if code is None]
        if failed or not running:
            return failed
        if time.monotonic() > deadline:
            return running
        time.sleep(POLL_S)


def _only_lost_a_peer(log: Path) -> bool:
    text = log.read_text(encoding="utf-8", errors="replace")
    return any(sign in text for sign in MISSED_PEER)


def _describe(rank: int, processes: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path]) -> str:
    code = processes[rank].poll()
    what = "was late and has been stopped" if code is None else f"ended with exit status {code}"
    lines = logs[rank].read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    return "\n".join([f"rank {rank} {what}", *lines])


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
