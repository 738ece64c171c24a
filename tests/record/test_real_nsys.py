"""The real nsys, where it is installed: what it takes, what it passes on and what its export then says.

Run with nsys 2022.4.2 and 2023.4.4 on a machine without CUDA; with CUDA the same program is captured by another range.
"""

from __future__ import annotations

import shutil
import sys

import pytest
from record.test_record import PROGRAM, TORCHRUN

from overlap.errors import StateError
from overlap.profiling.breakdown import break_down
from overlap.profiling.classify import classifier
from overlap.profiling.recording import COMMUNICATION, COMPUTE
from overlap.profiling.sources import read_recordings
from overlap.record.command import record
from overlap.record.settings import ProfileSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nsys") is None, reason="Nsight Systems is not installed"),
]

BLOCKS = {"blocks.0", "blocks.1", "blocks.2"}


def test_two_ranks_are_recorded_with_their_units(tmp_path):
    command = [sys.executable, *TORCHRUN, str(PROGRAM), "overlap", "6"]
    out = record(command, ProfileSettings(out=str(tmp_path), tool="nsys", skip=2, steps=2))
    assert {file.name for file in out.iterdir()} == {"capture.nsys-rep", "capture.sqlite"}
    ranks = read_recordings(out, classifier())
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        assert [step.name for step in rank.steps] == ["ProfilerStep#0", "ProfilerStep#1"]
        assert break_down(rank.activities).comm_ns > 0  # asserts the sum, too
        for category in (COMMUNICATION, COMPUTE):
            assert {one.unit for one in rank.activities if one.category == category} >= BLOCKS


def test_the_status_of_the_program_is_passed_on(tmp_path):
    with pytest.raises(StateError, match="must end with status 0, but got 7"):
        record([sys.executable, "-c", "raise SystemExit(7)"], ProfileSettings(out=str(tmp_path), tool="nsys"))


def test_a_program_that_never_steps_leaves_nothing(tmp_path):
    with pytest.raises(StateError, match="must step an optimizer of torch while it is recorded, but got no trace"):
        record([sys.executable, "-c", "pass"], ProfileSettings(out=str(tmp_path), tool="nsys"))
