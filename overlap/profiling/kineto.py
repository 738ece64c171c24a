"""Traces of torch.profiler (Kineto, Chrome format), of CUDA and ROCm devices."""

import re
from pathlib import Path

from overlap.profiling.classify import Classifier
from overlap.profiling.kineto_events import DeviceEvent, KinetoEvents, read_events
from overlap.profiling.kineto_units import with_units
from overlap.profiling.nesting import HostEvent
from overlap.profiling.recording import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    MEMSET,
    Activity,
    Category,
    Recording,
    chronological,
)

_CATEGORY: dict[str, Category] = {"kernel": COMPUTE, "memcpy": COPY, "memset": MEMSET}
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)


def read_kineto(path: str | Path, classifier: Classifier) -> Recording:
    """Read the trace of one rank, ``.json`` or ``.json.gz``."""
    events = read_events(path)
    activities = with_units([_activity(one, events.launches, classifier) for one in events.device], events)
    return Recording(
        rank=_rank(events, Path(path)),
        source=str(path),
        activities=chronological(activities),
        steps=tuple(events.steps),
    )


def _activity(one: DeviceEvent, launches: dict[int, HostEvent], classifier: Classifier) -> Activity:
    launch = launches.get(one.correlation) if one.correlation is not None else None
    rule = classifier.rule_of(one.name)
    return Activity(
        name=one.name,
        category=rule.category if rule else _CATEGORY[one.kind],
        stream=one.stream,
        start_ns=one.start_ns,
        end_ns=one.end_ns,
        launched_ns=launch.start_ns if launch else None,
        thread=launch.thread if launch else "",
        library=rule.library if rule and rule.category == COMMUNICATION else "",
    )


def _rank(events: KinetoEvents, path: Path) -> int:
    """As the trace says, else as the file's name says, else 0."""
    stated = events.header.get("distributedInfo", {}).get("rank")
    if isinstance(stated, int):
        return stated
    named = _RANK_IN_NAME.search(path.name)
    return int(named.group(1)) if named else 0
