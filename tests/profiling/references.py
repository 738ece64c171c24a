"""Where the public recordings lie, and what other tools say about them (see README.md beside the fixtures)."""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path

import pytest

from overlap.profiling.classify import classifier
from overlap.profiling.recording import Recording
from overlap.profiling.sources import read_recordings

FIXTURES = Path(__file__).parent / "fixtures"
_BESIDE = Path(__file__).parents[3] / "shared" / "data"
DATA = Path(os.environ.get("OVERLAP_DATA", _BESIDE))

needs_data = pytest.mark.skipif(
    not (DATA / "traces").is_dir(), reason="the public recordings are not here: set OVERLAP_DATA to their folder"
)


def rows(name: str, folder: Path = DATA / "reference") -> list[dict[str, str]]:
    """The rows of a CSV; none where the folder is missing, so that tests over them are collected and skipped."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def recording(dataset: str, file: str) -> Recording:
    """A public trace, read once."""
    (only,) = read_recordings(DATA / "traces" / dataset / file, classifier())
    return only


def row_id(row: dict[str, str]) -> str:
    return "-".join(row[key] for key in ("dataset", "rank", "window", "rounding") if key in row)
