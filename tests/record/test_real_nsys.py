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
from overlap.profiling.own import recordings, spans_of_trace
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


def test_the_ranges_are_our_own_timeline(tmp_path):
    """Two clocks, one run: nsys stamps the ranges, the engine the spans. Training step n is the n+1st of the engine."""
    command = [sys.executable, "-m", "overlap", "train", "--size", "tiny", "--ranks", "2", "--steps", "6"]
    settings = ProfileSettings(out=str(tmp_path / "nsys"), tool="nsys", skip=3, steps=2)
    ranks = read_recordings(record([*command, "--out", str(tmp_path / "run")], settings), classifier())
    spans = spans_of_trace(tmp_path / "run" / "timeline.json")
    for rank in ranks:
        for number, step in enumerate(rank.steps, settings.skip + 2):
            (own,) = recordings([span for span in spans if (span.rank, span.step) == (rank.rank, number)], "")
            there = [one for one in rank.activities if step.start_ns <= one.start_ns < step.end_ns]
            ours, theirs = break_down(own.activities), break_down(there)
            for name in ("span_ns", "compute_ns", "comm_ns", "exposed_comm_ns"):
                # Apart from what crosses the border of a step they differ by 0.3 ms at most.
                assert getattr(theirs, name) == pytest.approx(getattr(ours, name), abs=0.05 * ours.span_ns), name


def test_the_status_of_the_program_is_passed_on(tmp_path):
    with pytest.raises(StateError, match="must end with status 0, but got 7"):
        record([sys.executable, "-c", "raise SystemExit(7)"], ProfileSettings(out=str(tmp_path), tool="nsys"))


def test_a_program_that_never_steps_leaves_nothing(tmp_path):
    with pytest.raises(StateError, match="must step an optimizer of torch while it is recorded, but got no trace"):
        record([sys.executable, "-c", "pass"], ProfileSettings(out=str(tmp_path), tool="nsys"))
