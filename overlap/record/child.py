"""The program as a child process that does not outlive us."""

import subprocess
from collections.abc import Mapping, Sequence

HEARD_S = 3.0
"""A Ctrl-C of the terminal reaches the child, too: until then it may be ending by itself."""
ENDED_S = 30.0
"""nsys ends the program, all ranks of it, and writes what it has."""


def run_to_its_end(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The status it ended with. Interrupted, by whatever sent the signal, it is ended before the interrupt goes on.

    ``subprocess.run`` would kill it after a quarter of a second, and killed, nsys leaves the ranks running.
    """
    with subprocess.Popen(command, env=environment) as process:
        try:
            return process.wait()
        except BaseException:
            _end(process)
            raise


def _end(process: "subprocess.Popen[bytes]") -> None:
    for ask, patience_s in ((None, HEARD_S), (process.terminate, ENDED_S), (process.kill, None)):
        if ask is not None:
            ask()
        try:
            process.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            continue
