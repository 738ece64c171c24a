"""Rows in nccl-tests' columns, so that what reads its logs reads ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from overlap.bench.collective.results import Figures, Report, Row
from overlap.comm.volume import Collective

_KEYS = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_FIGURES = "  {:>7}  {:>6}  {:>6}  {:>6}"
_WIDTHS = (7, 6, 6)


def opening(machine: dict[str, Any], settings: dict[str, Any]) -> Iterator[str]:
    """What is measured, on what."""
    options = ("layout", "warmup", "iters", "check", "out_datatype")
    yield "# " + " ".join(f"{name}: {settings[name]}" for name in options)
    yield from (f"# {name}: {value}" for name, value in machine.items())
    yield from (f"#  Rank {rank:2} of {settings['ranks']}" for rank in range(settings["ranks"]))


def header(op: Collective, transports: Iterable[str]) -> Iterator[str]:
    """Names and units of the columns."""
    extra = ["  transport"] if len(tuple(transports)) > 1 else []
    yield f"# Collective test starting: {op} over {', '.join(transports)}"
    yield "# " + _KEYS.format(*[""] * 5)[2:] + f"  {'out-of-place':^29}  {'in-place':^29}"
    keys = _KEYS.format("size", "count", "type", "redop", "root")[2:]
    yield "# " + keys + _FIGURES.format("time", "algbw", "busbw", "#wrong") * 2 + "".join(extra)
    units = _KEYS.format("(B)", "(elements)", "", "", "")[2:]
    yield "# " + units + _FIGURES.format("(us)", "(GB/s)", "(GB/s)", "") * 2


def line(row: Row, with_transport: bool) -> str:
    """One row."""
    keys = _KEYS.format(row.size, row.count, row.type, row.redop, row.root)
    cells = _cells(row.out_of_place) + _cells(row.in_place)
    return keys + cells + (f"  {row.transport:>9}" if with_transport else "")


def closing(report: Report) -> Iterator[str]:
    """What nccl-tests says last."""
    wrong, mean = report.wrong, report.mean_busbw_gbps
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    if mean is not None:
        yield f"# Avg bus bandwidth    : {mean:g}"


def _cells(figures: Figures | None) -> str:
    if figures is None:
        return _FIGURES.format(*["N/A"] * 4)
    numbers = (figures.time_us, figures.algbw_gbps, figures.busbw_gbps)
    shown = [_fitted(number, width) for number, width in zip(numbers, _WIDTHS, strict=True)]
    return _FIGURES.format(*shown, "N/A" if figures.wrong is None else figures.wrong)


def _fitted(number: float, width: int) -> str:
    """As many decimals, two at most, as the column has room for."""
    texts = (f"{number:.{decimals}f}" for decimals in (2, 1, 0))
    return next((text for text in texts if len(text) <= width), f"{number:.1e}")
