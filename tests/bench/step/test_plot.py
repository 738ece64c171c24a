import pytest

from overlap.bench.step.plot import draw
from overlap.bench.step.results import Outcome, StepReport
from overlap.bench.step.rows import rows_of
from overlap.bench.step.settings import StepSettings


def test_a_picture_of_what_ran(tmp_path):
    pytest.importorskip("matplotlib")
    seen = [Outcome(contender=name, seconds=[0.5, 0.25]) for name in ("alone", "ours-3", "fsdp2")]
    seen.append(Outcome(contender="deepspeed-3", skipped="not installed"))
    rows = rows_of(StepSettings(net="1gbit"), seen, {})
    draw(StepReport("1gbit", 2, {}, rows), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")
