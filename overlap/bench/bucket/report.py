"""A sweep on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from overlap.bench.bucket.advice import Advice
from overlap.bench.bucket.results import Sweep, SweepRow
from overlap.bench.bucket.tables import Table
from overlap.bench.collective.sizes import show_bytes

_COLUMNS = (
    ("bucket", 9),
    ("in flight", 9),
    ("buckets", 7),
    ("call us", 9),
    ("busbw", 6),
    ("beside", 6),
    ("alone ms", 8),
    ("compute", 8),
    ("step ms", 8),
    ("exposed", 8),
    ("slowdown", 8),
)


def opening(machine: dict[str, Any], settings: dict[str, Any]) -> Iterator[str]:
    """What is swept, on what, and the names of the columns."""
    yield f"# {', '.join(f'{name} {value}' for name, value in machine.items())}"
    words = f"{settings['collective']} over {settings['transport']}, {settings['ranks']} ranks, {settings['datatype']}"
    compute = f"compute as long as {settings['ratio']:g} x the gradients in the largest bucket"
    yield f"# {words}; {show_bytes(settings['total_bytes'])} of gradients per step; {compute}"
    yield "  ".join(f"{name:>{width}}" for name, width in _COLUMNS)


def line(row: SweepRow) -> str:
    """One row."""
    cells = (
        show_bytes(row.bucket_bytes),
        str(row.in_flight),
        str(row.buckets),
        f"{row.call_us:.1f}",
        f"{row.busbw_alone_gbps:.2f}",
        f"{row.busbw_beside_gbps:.2f}",
        *(f"{ms:.2f}" for ms in (row.alone_ms, row.compute_ms, row.step_ms, row.exposed_ms)),
        f"{row.slowdown:.2f}x",
    )
    return "  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))


def advice_of(sweep: Sweep) -> Advice:
    """The fit of the sweep's calls alone."""
    settings = sweep.settings
    times: dict[int, list[float]] = {}
    for row in sweep.rows:
        times.setdefault(row.bucket_bytes, []).append(row.call_us / 1e6)
    points = tuple((nbytes, median(seconds)) for nbytes, seconds in times.items())
    label = f"{settings['collective']} {settings['datatype']} over {settings['transport']}"
    table = Table(label=label, op=settings["collective"], world=settings["ranks"], points=points)
    return Advice.of(table, settings["share"])


def closing(sweep: Sweep) -> Iterator[str]:
    """The fit, the bucket that it recommends, and the one of the shortest step."""
    yield from advice_of(sweep).lines()
    best = sweep.fastest
    ideal = max(best.compute_ms, best.alone_ms)
    yield (
        f"  shortest step: {show_bytes(best.bucket_bytes)} x {best.in_flight}, {best.step_ms:.1f} ms "
        f"({best.exposed_ms:.1f} exposed, compute {best.slowdown:.2f}x; the longer of both alone: {ideal:.1f} ms)"
    )
