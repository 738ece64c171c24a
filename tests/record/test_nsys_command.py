"""Where nsys is on the PATH it wraps the program with our capture settings; here a stand-in of that name."""

import json
import os
import stat
import sys

import pytest

from overlap.errors import ConfigError
from overlap.record.command import CAPTURE, record
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


@pytest.mark.parametrize("tool", ["auto", "nsys"])
def test_nsys_is_taken_where_it_is_there(nsys, tmp_path, tool):
    out = record(["python", "train.py", "--lr=1"], ProfileSettings(out=str(tmp_path / "out"), tool=tool, steps=4))
    written = json.loads((out / "capture.sqlite").read_text())
    assert written["argv"] == [*CAPTURE[1:], f"--output={out / 'capture'}", "python", "train.py", "--lr=1"]
    orders = json.loads(written["orders"])
    assert (orders["tool"], orders["skip"], orders["steps"]) == ("nsys", 3, 4)


def test_nsys_that_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="nsys must be on the PATH"):
        record(["true"], ProfileSettings(out=str(tmp_path / "out"), tool="nsys"))


def test_a_command_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="command must be runnable, but got no-such-program"):
        record(["no-such-program"], ProfileSettings(out=str(tmp_path / "out"), tool="torch"))
