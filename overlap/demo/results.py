"""What a run leaves behind: figures of all ranks, as data and as files."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

import overlap
from overlap.demo.journal import Journal
from overlap.demo.settings import TrainSettings
from overlap.engine.wire import WireReport
from overlap.errors import ConfigError, message
from overlap.profiling.aggregate import summarize
from overlap.profiling.metrics import StepMetrics
from overlap.profiling.perfetto import write_trace
from overlap.profiling.timeline import Timeline

KEPT_STEPS = 20
"""The last steps, of which timelines are gathered and measured."""


@dataclass(frozen=True)
class Heldout:
    """Bits per held-out byte."""

    before: float
    after: float


@dataclass(frozen=True)
class Results:
    """What rank 0 knows at the end."""

    settings: TrainSettings
    journal: Journal
    heldout: Heldout
    engine: overlap.Engine
    timeline: Timeline
    """Of all ranks, the last steps."""
    metrics: StepMetrics
    """The median of those steps."""


def collect(settings: TrainSettings, model: nn.Module, journal: Journal, heldout: Heldout) -> Results | None:
    """Bring all ranks' timelines to rank 0; None on the others. All ranks call it."""
    engine = overlap.engine_of(model)
    timeline = gather_timelines(engine.timeline)
    if timeline is None:
        return None
    return Results(settings, journal, heldout, engine, timeline, summarize(timeline))


def gather_timelines(own: Timeline) -> Timeline | None:
    """Merge the training steps that every rank remembers last; None on every rank but 0."""
    trained = [step for step in own.steps() if any(span.kind == "backward" for span in own.of_step(step))]
    planned = trained[2:] or trained  # as in Journal.median_step_ms
    spans = [span for step in planned[-KEPT_STEPS:] for span in own.of_step(step)]
    merged: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(spans, merged)
    if merged is None:
        return None
    timeline = Timeline()
    for part in merged:
        timeline.extend(part)
    return timeline


def make_folder(folder: Path) -> None:
    """Make the folder for results before anything is trained.

    Raises:
        ConfigError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").unlink(missing_ok=True)  # of an earlier run: none of this one yet
    except OSError as error:
        got = f"{folder} ({error.strerror})"
        raise ConfigError(message("out", "be a folder to write to", got, "choose another")) from error


def write(results: Results, folder: Path) -> None:
    """Write summary, metrics, trace and plan into an existing folder."""
    results.journal.write(folder / "metrics.jsonl")
    write_trace(results.timeline, folder / "timeline.json")
    text = json.dumps(summary(results), indent=2)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    if results.engine.plan is not None:
        (folder / "plan.json").write_text(results.engine.plan.to_json() + "\n", encoding="utf-8")


def summary(results: Results) -> dict[str, Any]:
    """The run in one JSON object."""
    memory, plan = results.engine.memory(), results.engine.plan
    losses = results.journal.losses()
    return {
        "stage": results.settings.stage,
        "ranks": results.settings.ranks,
        "steps": results.settings.steps,
        "loss": {
            "first": losses[0],
            "last": losses[-1],
            "heldout_before": results.heldout.before,
            "heldout_after": results.heldout.after,
        },
        "step_ms": {"median": results.journal.median_step_ms()},
        "wire_bytes": wire_bytes(results.engine.wire()),
        "model_state_bytes": {
            "allocated": memory.allocated,
            "predicted": memory.predicted,
            "formula": memory.formula,
        },
        "overlap": results.metrics.to_dict(),
        "plan": {"hash": plan.hash if plan else None, "deviations": results.engine.deviations},
        "settings": asdict(results.settings),
    }


def wire_bytes(wire: WireReport) -> dict[str, Any]:
    """What rank 0 sent in a step; ``counted`` is ``formula`` plus everything in ``other``."""
    counted = wire.counted + sum(wire.other.values())
    return {"counted": counted, "formula": wire.formula, "other": {**wire.items, **wire.other}}
