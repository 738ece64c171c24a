"""Step times as a picture: a bar per contender, over what the floor takes and what its stage could reach."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from overlap.bench.step.contenders import CONTENDERS
from overlap.bench.step.results import Row, StepReport
from overlap.errors import ConfigError, message

INCHES = (8.0, 0.42)
"""Width, and height per contender."""
OURS, PEER, FLOOR, LIMIT = "#1b7837", "#9aa5b1", "#4a5568", "#c0392b"


def check_plot(path: Path | None) -> None:
    """Refuse a plot that could not be drawn, before anything is measured.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if path is not None and find_spec("matplotlib") is None:
        raise ConfigError(message("plot", "have matplotlib", "none", "install overlap-engine[plot], or leave it out"))


def draw(report: StepReport, path: Path) -> None:
    """Write a PNG."""
    shown = [row for row in report.rows if row.step_ms is not None][::-1]  # the first one at the top
    figure = import_module("matplotlib.figure").Figure((INCHES[0], 1.6 + INCHES[1] * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(range(len(shown)), [row.step_ms for row in shown], color=[_colour(row) for row in shown])
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.scatter(
        [row.ideal_ms for row in shown], range(len(shown)), marker="|", s=160, c=LIMIT, label="ideal", zorder=3
    )
    axes.set_yticks(range(len(shown)), [row.contender for row in shown])
    axes.set_xlabel("ms per step, median")
    axes.set_title(f"net {report.net}, {report.ranks} ranks, {report.rows[0].dtype}")
    figure.legend(loc="outside upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, format="png")


def _colour(row: Row) -> str:
    spec = CONTENDERS[row.contender]
    return FLOOR if spec.stage is None else OURS if spec.ours else PEER
