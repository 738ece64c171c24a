"""Names of namespaces, by which a later run knows whose they were and whether that run is still alive."""

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

PREFIX = "overlap"

_serial = count()


def name_of_run() -> str:
    """Return a new prefix: this process by id and start time (ids come round again), and a number."""
    return f"{PREFIX}-{os.getpid()}-{_started(os.getpid())}-{next(_serial)}"


def namespaces_of(run: str) -> list[str]:
    """List the namespaces of a run that are there now, however far it came."""
    return [name for name in _all() if name.startswith(f"{run}-")]


def remove_leftovers() -> None:
    """Remove the namespaces of runs whose process is gone."""
    remove([name for name in _all() if _is_dead(name)])


def remove(names: Sequence[str]) -> None:
    """Kill what still runs in namespaces, then delete them."""
    for name in names:
        for pid in _output("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _output("ip", "netns", "delete", name)


def _is_dead(name: str) -> bool:
    matched = re.match(rf"{PREFIX}-([0-9]+)-([0-9]+)-[0-9]+-", name)
    return matched is not None and _started(int(matched[1])) != int(matched[2])


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None where there is none (proc(5), field 22 of stat)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def _all() -> list[str]:
    return [line.split()[0] for line in _output("ip", "netns", "list").splitlines() if line.strip()]


def _output(*command: str) -> str:
    """What a command prints; nothing if it fails, as it does for a namespace that another run has just removed."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
