"""Exports without a device: our NVTX ranges tell what ran, for on CPU a range lasts as long as its work.

caller   |forward     |stall b0|forward b0|...        each moment belongs to the innermost range
gather   |gather b0      |                            lanes are threads of their own
"""

from collections.abc import Iterable, Mapping, Sequence

from overlap.profiling.attribution import OUR_MARK
from overlap.profiling.classify import Classifier
from overlap.profiling.messages import LANE_COLLECTIVES
from overlap.profiling.nesting import HostEvent, innermost
from overlap.profiling.nsys_marks import ranks_of
from overlap.profiling.nsys_tables import process_of
from overlap.profiling.recording import (
    COMMUNICATION,
    COMPUTE,
    NO_MESSAGE,
    OTHER,
    Activity,
    Category,
    Message,
    Recording,
    chronological,
)
from overlap.profiling.timeline import STALL

NOTE = (
    "no device was recorded: these are the ranges of overlap on the CPU, and what runs outside of them is idle; "
    "--tool torch records every operator"
)


def read_lanes(
    ranges: Sequence[HostEvent],
    steps: Sequence[HostEvent],
    ranks: Mapping[int, int],
    classifier: Classifier,
    source: str,
) -> list[Recording]:
    """A recording per process that has ranges of ours.

    Args:
        ranges: of all processes.
        steps: those of them that mark steps.
        ranks: by process, where it said so.
        classifier: tells which ranges communicate.
        source: the file.
    """
    ours = [event for event in ranges if event.name.startswith(OUR_MARK)]
    processes = sorted({process_of(event.thread) for event in ours})
    pieces, found = innermost(ours), []
    for rank, process in zip(ranks_of(processes, ranks), processes, strict=True):
        own = [piece for piece in pieces if process_of(piece.thread) == process]
        found.append(
            Recording(
                rank=rank,
                source=source,
                activities=chronological(_activity(piece, classifier) for piece in own),
                steps=_of(process, steps),
                waits=_of(process, (piece for piece in own if _phase_and_unit(piece)[0] == STALL)),
                notes=(NOTE,),
            )
        )
    return found


def _activity(piece: HostEvent, classifier: Classifier) -> Activity:
    phase, unit = _phase_and_unit(piece)
    size = int(piece.args.get("payload", 0))
    category = _category(piece.name, phase, size, classifier)
    communicates = category == COMMUNICATION
    message = Message(collective=LANE_COLLECTIVES.get(phase, ""), wire_bytes=size, group=f"{OUR_MARK}{phase}")
    return Activity(
        name=f"{phase} {unit}".rstrip(),
        category=category,
        stream=phase if communicates else COMPUTE,
        start_ns=piece.start_ns,
        end_ns=piece.end_ns,
        thread=piece.thread,
        unit=unit,
        phase=phase,
        library="overlap" if communicates else "",
        message=message if communicates else NO_MESSAGE,
    )


def _category(name: str, phase: str, size: int, classifier: Classifier) -> Category:
    """A stall is nobody's work, and so is a gather on one rank, which moves nothing over a wire."""
    rule = classifier.rule_of(name)
    if phase == STALL or (rule is not None and rule.category == COMMUNICATION and not size):
        return OTHER
    return rule.category if rule is not None else COMPUTE


def _phase_and_unit(event: HostEvent) -> tuple[str, str]:
    phase, _, unit = event.name.removeprefix(OUR_MARK).partition(" ")
    return phase, unit


def _of(process: int, events: Iterable[HostEvent]) -> tuple[HostEvent, ...]:
    own = (event for event in events if process_of(event.thread) == process)
    return tuple(sorted(own, key=lambda event: event.start_ns))
