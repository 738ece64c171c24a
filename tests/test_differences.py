"""docs/differences.md: every line names a test, and the test is there."""

import re
from pathlib import Path

import pytest
from support.source import ROOT

LINES = [
    line
    for line in (ROOT / "docs" / "differences.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| Behaviour")
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip())
def test_a_behaviour_has_the_test_that_holds_it(line: str) -> None:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert len(cells) == 5, "behaviour, FSDP2, DeepSpeed, Overlap, test"
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", cells[-1])
    assert named, cells[-1]
    source = (ROOT / Path(named[1])).read_text(encoding="utf-8")
    assert f"def {named[2]}(" in source, named[0]
