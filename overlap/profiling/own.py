"""Recordings from our own timelines: ``Timeline.to_json``, and the ``timeline.json`` of a run (a Perfetto trace).

Both tell lane, kind, unit, bytes, step and rank of every span, so nothing has to be guessed. When the host issued a
span is not recorded.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from overlap.profiling.json_stream import TraceStream, nanoseconds
from overlap.profiling.messages import LANE_COLLECTIVES
from overlap.profiling.nesting import HostEvent
from overlap.profiling.perfetto import FORMAT
from overlap.profiling.recording import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    NO_MESSAGE,
    OTHER,
    Activity,
    Category,
    Message,
    Recording,
    chronological,
)
from overlap.profiling.timeline import Span, Timeline


def read_timeline(path: str | Path) -> list[Recording]:
    """What ``Timeline.to_json`` wrote, a recording per rank."""
    return recordings(Timeline.from_json(path), str(path))


def read_perfetto(path: str | Path) -> list[Recording]:
    """What ``perfetto.write_trace`` wrote, a recording per rank."""
    return recordings(spans_of_trace(path), str(path))


def is_own_trace(head: str) -> bool:
    """Whether a file that begins with ``head`` is a trace of ours."""
    return f'"format":"{FORMAT}"' in head


def spans_of_trace(path: str | Path) -> list[Span]:
    """The spans of a Perfetto trace of ours, back on the clock they were taken from."""
    stream = TraceStream(path)
    lanes: dict[tuple[int, int], str] = {}
    rows = []
    for event in stream.events():
        if event["name"] == "thread_name":
            lanes[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            rows.append(event)
    origin = int(stream.header["otherData"]["origin_ns"])
    return [_span(row, lanes[row["pid"], row["tid"]], origin) for row in rows]


def _span(row: dict[str, Any], lane: str, origin: int) -> Span:
    args, start_ns = row["args"], origin + nanoseconds(row["ts"])
    end_ns = start_ns + nanoseconds(row["dur"])
    return Span(lane, row["cat"], args["unit"], args["bytes"], start_ns, end_ns, args["step"], row["pid"])


def recordings(spans: Iterable[Span], source: str) -> list[Recording]:
    """A recording per rank, in order of rank."""
    by_rank: dict[int, list[Span]] = {}
    for span in spans:
        by_rank.setdefault(span.rank, []).append(span)
    return [_recording(rank, by_rank[rank], source) for rank in sorted(by_rank)]


def _recording(rank: int, spans: list[Span], source: str) -> Recording:
    return Recording(
        rank=rank,
        source=source,
        activities=chronological(map(_activity, spans)),
        steps=_steps(spans),
        waits=tuple(
            HostEvent(f"stall {span.unit}", span.lane, span.start_ns, span.end_ns, {}) for span in spans if span.stalled
        ),
    )


def _activity(span: Span) -> Activity:
    category = _category(span)
    message = Message(
        collective=LANE_COLLECTIVES.get(span.lane, ""), wire_bytes=span.bytes, group=f"overlap:{span.lane}"
    )
    return Activity(
        name=f"{span.kind} {span.unit}".rstrip(),
        category=category,
        stream=span.lane,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        unit=span.unit,
        phase=span.kind,
        library="overlap" if category == COMMUNICATION else "",
        message=message if category == COMMUNICATION else NO_MESSAGE,
    )


def _category(span: Span) -> Category:
    """A stall is neither, and so is a gather on one rank, which moves nothing over a wire."""
    if span.busy:
        return COMPUTE
    if span.communicates:
        return COMMUNICATION
    return COPY if span.lane in ("host", "disk") else OTHER


def _steps(spans: Iterable[Span]) -> tuple[HostEvent, ...]:
    """A step from the first start to the last end of its spans; steps may overlap."""
    bounds: dict[int, tuple[int, int]] = {}
    for span in spans:
        start, end = bounds.get(span.step, (span.start_ns, span.end_ns))
        bounds[span.step] = min(start, span.start_ns), max(end, span.end_ns)
    return tuple(HostEvent(f"step {step}", "", *bounds[step], {}) for step in sorted(bounds))
