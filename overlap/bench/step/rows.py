"""From what the ranks saw to the rows of the table: every ratio is worked out here."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

from overlap.bench.step.contenders import CONTENDERS, FLOOR
from overlap.bench.step.ideal import ideal_ms
from overlap.bench.step.results import Outcome, Row
from overlap.bench.step.settings import StepSettings

CountedBy = Literal["engine", "/proc/net/dev", "formula"]


def rows_of(
    settings: StepSettings, outcomes: Sequence[Outcome], peaks: Mapping[str, Mapping[str, Any]]
) -> tuple[Row, ...]:
    """Compare every contender with the floor, with its ideal, and peers with ours.

    Args:
        settings: of the run.
        outcomes: of all contenders, in order.
        peaks: ``peak_bytes`` and ``start_bytes`` by contender, where they were measured.
    """
    times = {outcome.contender: 1e3 * median(outcome.seconds) for outcome in outcomes if outcome.skipped is None}
    return tuple(_row(settings, outcome, times, peaks.get(outcome.contender, {})) for outcome in outcomes)


def _row(settings: StepSettings, seen: Outcome, times: Mapping[str, float], peak: Mapping[str, Any]) -> Row:
    spec = CONTENDERS[seen.contender]
    if seen.skipped is not None:
        return Row(contender=spec.name, stage=spec.stage, dtype=settings.dtype, skipped=seen.skipped)
    step_ms, floor_ms = times[spec.name], times[FLOOR]
    rival = spec.rival if spec.rival in times else None
    ideal = ideal_ms(floor_ms, seen.ideal_bytes, settings.link)
    wire, counted_by = _wire(seen)
    return Row(
        contender=spec.name,
        stage=spec.stage,
        dtype=settings.dtype,
        step_ms=step_ms,
        exposed_ms=step_ms - floor_ms,
        wire_bytes=wire,
        wire_counted_by=counted_by,
        proc_net_bytes=seen.kernel_bytes,
        peak_bytes=peak.get("peak_bytes"),
        start_bytes=peak.get("start_bytes"),
        ours_speedup=None if rival is None else step_ms / times[rival],
        compared_with=rival,
        over_floor=step_ms / floor_ms,
        over_ideal=step_ms / ideal,
        ideal_ms=ideal,
        ideal_bytes=seen.ideal_bytes,
        loss_last=seen.losses[-1] if seen.losses else None,
        loss_error=seen.loss_error,
        collectives=seen.collectives,
        options=seen.options,
        samples_ms=[1e3 * second for second in seen.seconds],
        wrong=seen.wrong,
    )


def _wire(seen: Outcome) -> tuple[int, CountedBy]:
    if seen.counted_bytes is not None:
        return seen.counted_bytes, "engine"
    if seen.kernel_bytes is not None:
        return seen.kernel_bytes, "/proc/net/dev"
    return seen.formula_bytes, "formula"
