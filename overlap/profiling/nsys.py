"""Exports of Nsight Systems: one recording per process and device."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from overlap.errors import ConfigError, message
from overlap.profiling.attribution import unit_and_phase
from overlap.profiling.classify import Classifier
from overlap.profiling.fsdp_ranges import module_code
from overlap.profiling.messages import message_of
from overlap.profiling.nesting import HostEvent, enclosing
from overlap.profiling.nsys_lanes import read_lanes
from overlap.profiling.nsys_marks import ranks_of
from overlap.profiling.nsys_tables import DeviceRow, opened
from overlap.profiling.recording import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    MEMSET,
    NO_MESSAGE,
    Activity,
    Category,
    Recording,
    chronological,
)

_CATEGORY: dict[str, Category] = {"kernel": COMPUTE, "graph": COMPUTE, "memcpy": COPY, "memset": MEMSET}
_STEP_MARKS = ("ProfilerStep", "overlap:step", "step ")
_BLOCKING = ("Synchronize", "cudaMemcpy_v", "cuStreamWaitValue")


def read_nsys(path: str | Path, classifier: Classifier) -> list[Recording]:
    """Read an export. Processes that do not say their rank are numbered by device, then process."""
    with opened(path) as export:
        rows, launches, ranges, ranks = list(export.device_rows()), export.launches(), export.ranges(), export.ranks()
    ranges += module_code(ranges)
    if not rows:
        return _without_a_device(path, launches, ranges, ranks, classifier)
    processes = sorted({row.process for row in rows}, key=lambda process: (process.device, process.pid))
    notes = _notes(rows, launches, ranges)
    recordings = []
    for rank, process in zip(ranks_of([process.pid for process in processes], ranks), processes, strict=True):
        own = [row for row in rows if row.process == process]
        recordings.append(_recording(rank, own, launches, ranges, classifier, str(path), notes))
    return recordings


def _without_a_device(
    path: str | Path,
    launches: dict[tuple[int, int], HostEvent],
    ranges: Sequence[HostEvent],
    ranks: dict[int, int],
    classifier: Classifier,
) -> list[Recording]:
    """Where CUDA was called, a range says when work was launched, not how long it took."""
    steps = [one for one in ranges if one.name.startswith(_STEP_MARKS)]
    found = [] if launches else read_lanes(ranges, steps, ranks, classifier, str(path))
    if not found:
        cure = "capture with `nsys profile -t cuda,nvtx`; without CUDA record with `overlap profile --tool torch`"
        rule = "hold kernels or copies of a device, or ranges of overlap on the CPU"
        raise ConfigError(message(Path(path).name, rule, "neither", cure))
    return found


def _recording(
    rank: int,
    rows: Sequence[DeviceRow],
    launches: dict[tuple[int, int], HostEvent],
    ranges: Sequence[HostEvent],
    classifier: Classifier,
    source: str,
    notes: tuple[str, ...],
) -> Recording:
    launched = [launches.get((row.process.pid, row.correlation or 0)) for row in rows]
    moments = [(launch.thread, launch.start_ns) if launch else ("", 0) for launch in launched]
    around = enclosing(ranges, moments)
    own = [_activity(row, *by, classifier) for row, by in zip(rows, zip(launched, around, strict=True), strict=True)]
    threads = {launch.thread for launch in launched if launch}
    return Recording(
        rank=rank,
        source=source,
        activities=chronological(own),
        steps=_in_order(one for one in ranges if one.thread in threads and one.name.startswith(_STEP_MARKS)),
        waits=_in_order(one for one in launches.values() if one.thread in threads and _blocks(one)),
        notes=notes,
    )


def _activity(
    row: DeviceRow, launch: HostEvent | None, around: Sequence[HostEvent], classifier: Classifier
) -> Activity:
    rule = classifier.rule_of(row.name)
    names = tuple(event.name for event in around)
    unit, phase = unit_and_phase(names)
    category = rule.category if rule else _CATEGORY[row.kind]
    communicates = category == COMMUNICATION
    return Activity(
        name=row.name,
        category=category,
        stream=row.stream,
        start_ns=row.start_ns,
        end_ns=row.end_ns,
        shape=row.shape,
        launched_ns=launch.start_ns if launch else None,
        thread=launch.thread if launch else "",
        ranges=names,
        unit=unit,
        phase=phase,
        library=rule.library if communicates and rule else "",
        message=message_of(row.name, {}, around, world=0) if communicates else NO_MESSAGE,
    )


def _blocks(call: HostEvent) -> bool:
    return any(mark in call.name for mark in _BLOCKING)


def _in_order(events: Iterable[HostEvent]) -> tuple[HostEvent, ...]:
    return tuple(sorted(events, key=lambda event: event.start_ns))


def _notes(
    rows: Sequence[DeviceRow], launches: dict[tuple[int, int], HostEvent], ranges: Sequence[HostEvent]
) -> tuple[str, ...]:
    notes = []
    if any(row.kind == "graph" for row in rows):
        notes.append(
            "CUDA graphs were recorded whole and count as compute: capture with --cuda-graph-trace=node to see inside"
        )
    if not launches:
        notes.append("no runtime calls were recorded: launches and their ranges are unknown (capture with -t cuda)")
    if not ranges:
        notes.append("no NVTX ranges were recorded: units are unknown (capture with -t nvtx)")
    return tuple(notes)
