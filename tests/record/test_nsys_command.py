"""Where nsys is on the PATH it wraps the program with our capture settings; here a stand-in of that name."""

import json
import os
import stat
import sys

import pytest
import torch

from overlap.errors import ConfigError, StateError
from overlap.record.command import BEGUN_BY_CUDA, BEGUN_BY_NVTX, CAPTURE, record
from overlap.record.settings import ProfileSettings

STAND_IN = """#!{python}
import json, os, sys
out = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))
with open(out + ".sqlite", "w") as file:
    json.dump({{"argv": sys.argv[1:], "orders": os.environ["OVERLAP_PROFILE"]}}, file)
"""


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "nsys"
    tool.write_text(STAND_IN.format(python=sys.executable))
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def with_cuda(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)


PROGRAM = [sys.executable, "-c", "pass", "--lr=1"]


@pytest.mark.parametrize(
    ("tool", "cuda", "begun"),
    [("auto", True, BEGUN_BY_CUDA), ("nsys", True, BEGUN_BY_CUDA), ("nsys", False, BEGUN_BY_NVTX)],
)
def test_nsys_wraps_the_program(nsys, tmp_path, monkeypatch, tool, cuda, begun):
    with_cuda(monkeypatch, cuda)
    out = record(PROGRAM, ProfileSettings(out=str(tmp_path / "out"), tool=tool, steps=4))
    written = json.loads((out / "capture.sqlite").read_text())
    assert written["argv"] == [*CAPTURE[1:], *begun, f"--output={out / 'capture'}", *PROGRAM]
    orders = json.loads(written["orders"])
    assert (orders["tool"], orders["cuda"], orders["skip"], orders["steps"]) == ("nsys", cuda, 3, 4)


def test_without_cuda_the_choice_is_torch(nsys, tmp_path, monkeypatch):
    with_cuda(monkeypatch, False)
    with pytest.raises(StateError, match="program must step an optimizer"):
        record(PROGRAM, ProfileSettings(out=str(tmp_path / "out")))


def test_nsys_that_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="nsys must be on the PATH"):
        record(["true"], ProfileSettings(out=str(tmp_path / "out"), tool="nsys"))


@pytest.mark.parametrize("tool", ["nsys", "torch"])
def test_a_command_that_is_not_there_is_said(nsys, tmp_path, tool):
    with pytest.raises(ConfigError, match="command must be runnable, but got no-such-program"):
        record(["no-such-program"], ProfileSettings(out=str(tmp_path / "out"), tool=tool))
