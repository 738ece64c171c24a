"""From many steps and ranks to one set of figures: the median, field by field.

Medians do not add up: the middle span and the middle compute time may come from different steps. Sums hold
exactly in each ``StepMetrics`` of ``per_step``.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from overlap.errors import StateError, message
from overlap.profiling.metrics import StepMetrics, measure
from overlap.profiling.timeline import Span, Timeline
from overlap.profiling.unit_metrics import PassMetrics, UnitMetrics


def per_step(timeline: Timeline, steps: Iterable[int] | None = None) -> dict[tuple[int, int], StepMetrics]:
    """Metrics of every (rank, step) recorded.

    Args:
        timeline: spans of one rank or of several.
        steps: the steps to look at, e.g. without the warm-up; None looks at all.
    """
    windows: dict[tuple[int, int], list[Span]] = {}
    for step in timeline.steps() if steps is None else steps:
        for span in timeline.of_step(step):
            windows.setdefault((span.rank, step), []).append(span)
    return {key: measure(windows[key]) for key in sorted(windows)}


def summarize(timeline: Timeline, steps: Iterable[int] | None = None) -> StepMetrics:
    """The median step over all ranks recorded."""
    return median_step(list(per_step(timeline, steps).values()))


def median_step(steps: Sequence[StepMetrics]) -> StepMetrics:
    """Median of every field; a unit that did not communicate in a step counts 0 there."""
    if not steps:
        cure = "run a step with observation on, and ask for a step the timeline still remembers"
        raise StateError(message("median", "be taken of at least one step", "none", cure))
    names = list(dict.fromkeys(unit.unit for step in steps for unit in step.units))
    rows = [{unit.unit: unit for unit in step.units} for step in steps]
    units = tuple(_median_unit(name, [row[name] for row in rows if name in row], len(steps)) for name in names)
    return StepMetrics(
        span_ns=_middle([step.span_ns for step in steps]),
        compute_ns=_middle([step.compute_ns for step in steps]),
        comm_ns=_middle([step.comm_ns for step in steps]),
        hidden_ns=_middle([step.hidden_ns for step in steps]),
        exposed_ns=_middle([step.exposed_ns for step in steps]),
        idle_ns=_middle([step.idle_ns for step in steps]),
        stall_ns=_middle([step.stall_ns for step in steps]),
        comm_ops=_middle([step.comm_ops for step in steps]),
        units=units,
    )


def _median_unit(name: str, seen: Sequence[UnitMetrics], steps: int) -> UnitMetrics:
    names = dict.fromkeys(one.name for unit in seen for one in unit.passes)
    parts = {pass_name: [one for unit in seen for one in unit.passes if one.name == pass_name] for pass_name in names}
    return UnitMetrics(
        unit=name,
        bytes=_middle([unit.bytes for unit in seen], steps),
        wire_ns=_middle([unit.wire_ns for unit in seen], steps),
        hidden_ns=_middle([unit.hidden_ns for unit in seen], steps),
        exposed_ns=_middle([unit.exposed_ns for unit in seen], steps),
        stall_ns=_middle([unit.stall_ns for unit in seen], steps),
        passes=tuple(_median_pass(pass_name, part, steps) for pass_name, part in parts.items()),
    )


def _median_pass(name: str, seen: Sequence[PassMetrics], steps: int) -> PassMetrics:
    return PassMetrics(
        name=name,
        bytes=_middle([one.bytes for one in seen], steps),
        wire_ns=_middle([one.wire_ns for one in seen], steps),
        hidden_ns=_middle([one.hidden_ns for one in seen], steps),
        exposed_ns=_middle([one.exposed_ns for one in seen], steps),
    )


def _middle(values: Sequence[int], steps: int | None = None) -> int:
    """The median as a whole number; values missing up to ``steps`` are 0."""
    missing = 0 if steps is None else steps - len(values)
    return int(median([*values, *[0] * missing]))
