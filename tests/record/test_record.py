"""Real programs, real ranks, recorded by the command a user types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from overlap.errors import ConfigError, StateError
from overlap.profiling.breakdown import break_down
from overlap.profiling.classify import classifier
from overlap.profiling.recording import COMMUNICATION, COMPUTE
from overlap.profiling.sources import read_recordings
from overlap.record.command import record
from overlap.record.settings import ProfileSettings

PROGRAM = Path(__file__).with_name("program.py")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def by_command_line(out: Path, *command: str) -> str:
    options = ("--out", str(out), "--tool", "torch", "--skip", "2", "--steps", "2")
    whole = [sys.executable, "-m", "overlap", "profile", *options, "--", *command]
    finished = subprocess.run(whole, capture_output=True, text=True, timeout=250)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def recorded(out: Path, which: str):
    """One of the two as a user does it, the other by the function behind."""
    command = [sys.executable, *TORCHRUN, str(PROGRAM), which, "6"]
    if which == "overlap":
        printed = by_command_line(out, *command)
        assert "trained 6 steps" in printed
        assert "where the time went, per rank" in printed
        assert "<title>overlap report</title>" in (out / "report.html").read_text()
    else:
        record(command, ProfileSettings(out=str(out), tool="torch", skip=2, steps=2))
    return read_recordings(out, classifier())


@pytest.fixture(scope="module", params=[pytest.param(which, marks=pytest.mark.slow) for which in ("fsdp2", "overlap")])
def run(request, tmp_path_factory):
    return request.param, recorded(tmp_path_factory.mktemp(request.param), request.param)


def test_every_rank_has_its_steps_and_adds_up(run):
    _, ranks = run
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        assert [step.name for step in rank.steps] == ["ProfilerStep#0", "ProfilerStep#1"]
        totals = break_down(rank.activities)  # asserts the sum
        assert totals.comm_ns > 0
        assert totals.compute_ns > 0


def test_collectives_carry_their_unit_and_phase(run):
    which, ranks = run
    blocks = {f"blocks.{number}" for number in range(3)}
    for rank in ranks:
        comm = [one for one in rank.activities if one.category == COMMUNICATION and one.unit]
        assert blocks <= {one.unit for one in comm}
        phases = {one.phase for one in comm}
        assert ({"gather", "reduce"} if which == "overlap" else {"all_gather", "post_backward_reduce"}) <= phases


def test_no_communication_of_ours_is_without_a_name(run):
    which, ranks = run
    if which != "overlap":
        pytest.skip("FSDP2 does not name what it does outside of its units")
    for rank in ranks:
        assert all(one.unit or one.phase for one in rank.activities if one.category == COMMUNICATION)


def test_every_operator_of_a_unit_carries_unit_or_phase(run):
    which, ranks = run
    for rank in ranks:
        compute = [one for one in rank.activities if one.category == COMPUTE]
        named = [one for one in compute if one.phase]
        phases = {one.phase for one in named}
        assert {"forward", "backward"} <= phases
        assert which != "overlap" or {"pack", "update"} <= phases
        for phase in ("forward", "backward"):
            assert {one.unit for one in named if one.phase == phase} >= {"blocks.0", "blocks.1", "blocks.2"}
        # Outside of the passes there is the user's own loss, and no matrix is multiplied there.
        multiplying = [one for one in compute if one.name in ("aten::linear", "aten::addmm", "aten::mm")]
        assert multiplying
        assert all(one.unit or one.phase for one in multiplying)


def test_a_program_that_fails_is_refused(tmp_path):
    with pytest.raises(StateError, match="must end with status 0, but got 3"):
        record([sys.executable, "-c", "raise SystemExit(3)"], ProfileSettings(out=str(tmp_path), tool="torch"))


def test_a_program_that_never_steps_is_refused(tmp_path):
    with pytest.raises(StateError, match="program must step an optimizer of torch while it is recorded"):
        record([sys.executable, "-c", "print('hello')"], ProfileSettings(out=str(tmp_path), tool="torch"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"skip": 0}, "skip must be at least 1, but got 0"),
        ({"steps": 0}, "steps must be at least 1, but got 0"),
        ({"tool": "perf"}, "tool must be one of auto, nsys, torch, but got perf"),
    ],
)
def test_bad_options_are_refused(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        ProfileSettings(out="x", **options)


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "rank0.json.gz").write_bytes(b"")
    with pytest.raises(ConfigError, match="out must be an empty folder"):
        record(["true"], ProfileSettings(out=str(tmp_path), tool="torch"))
