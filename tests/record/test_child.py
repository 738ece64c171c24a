"""A program that is interrupted is over before the interrupt goes on, however its tool takes it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlap.record import child
from overlap.record.child import run_to_its_end

# Says that it runs, and then what reaches it.
PROGRAM = """
import signal, sys, time
{handlers}
open(sys.argv[1], "w").write("runs")
time.sleep(60)
"""
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
WRITES = "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], 'w').write('told'), sys.exit(5)))"


def test_the_status_is_passed_on():
    assert run_to_its_end([sys.executable, "-c", "raise SystemExit(7)"], os.environ) == 7


@pytest.mark.parametrize(("handlers", "left"), [(WRITES, "told"), (DEAF, "runs")], ids=["asked", "killed"])
def test_an_interrupt_ends_the_program_first(tmp_path, monkeypatch, handlers, left):
    monkeypatch.setattr(child, "HEARD_S", 0.1)
    monkeypatch.setattr(child, "ENDED_S", 5.0 if left == "told" else 0.1)
    file = tmp_path / "said"
    real, started = subprocess.Popen.wait, []

    def wait(process, timeout=None):
        if not started:
            started.append(process)
            _until(file)
            raise KeyboardInterrupt
        return real(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        run_to_its_end([sys.executable, "-c", PROGRAM.format(handlers=handlers), str(file)], os.environ)
    assert started[0].returncode == (5 if left == "told" else -signal.SIGKILL)
    assert file.read_text() == left


def _until(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not file.exists() or file.read_text() != "runs":
        assert time.monotonic() < deadline
        time.sleep(0.01)
