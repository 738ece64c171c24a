"""Counting steps, and the hook that prepares recording without costing other processes anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlap.record import recorder as module
from overlap.record.recorder import Recorder
from overlap.record.settings import Orders

SITE = Path(module.__file__).parent / "site"


class Spy:
    def __init__(self, log):
        self.log = log
        log.append("start")

    def step(self):
        self.log.append("step")

    def stop(self):
        self.log.append("stop")


@pytest.fixture
def log(monkeypatch):
    log = []
    monkeypatch.setattr(module, "start", lambda _: Spy(log))
    return log


def recorder(skip=2, steps=3):
    return Recorder(Orders(tool="torch", cuda=False, out="", skip=skip, steps=steps, home=""))


@pytest.mark.parametrize(("steps", "expected"), [(1, []), (2, ["start"]), (4, ["start", "step", "step"])])
def test_a_program_that_ends_early_is_recorded_as_far_as_it_came(log, steps, expected):
    one, optimizer = recorder(), object()
    for _ in range(steps):
        one.stepped(optimizer)
    assert log == expected
    one.finish()
    assert log == [*expected, *(["stop"] if expected else [])]


def test_recording_begins_behind_the_skipped_steps_and_ends(log):
    one, optimizer = recorder(), object()
    for _ in range(9):
        one.stepped(optimizer)
    one.finish()
    assert log == ["start", "step", "step", "stop"]


def test_a_second_optimizer_belongs_to_the_same_steps(log):
    one, first, second = recorder(skip=1, steps=1), object(), object()
    for _ in range(2):
        one.stepped(first)
        one.stepped(second)
    assert log == ["start", "stop"]


def test_python_starts_as_ever_where_no_optimizer_is_imported(tmp_path):
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("print('the one of the user')\n")
    path = os.pathsep.join([str(SITE), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": path, "OVERLAP_PROFILE": "{}"}
    code = "import sys; print(sorted({'torch', 'overlap', 'json'} & set(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[0] == "the one of the user"
    assert "torch" not in finished.stdout
    assert "overlap" not in finished.stdout
