"""Traces of torch.profiler (Kineto, Chrome format), of CUDA and ROCm devices, and of gloo without one."""

import re
from collections.abc import Iterable
from pathlib import Path

from overlap.profiling.classify import Classifier, Rule
from overlap.profiling.kineto_events import DeviceEvent, KinetoEvents, read_events
from overlap.profiling.kineto_host import host_activities
from overlap.profiling.kineto_units import Origin, origins
from overlap.profiling.messages import message_of, world_of
from overlap.profiling.nesting import HostEvent
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

_CATEGORY: dict[str, Category] = {"kernel": COMPUTE, "memcpy": COPY, "memset": MEMSET}
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_BLOCKING = re.compile(r"Synchronize|^aten::(item|_local_scalar_dense)$")


def read_kineto(path: str | Path, classifier: Classifier) -> Recording:
    """Read the trace of one rank, ``.json`` or ``.json.gz``."""
    events = read_events(path)
    activities = _device_activities(events, classifier) if events.device else host_activities(events, classifier)
    return Recording(
        rank=_rank(events, Path(path)),
        source=str(path),
        activities=chronological(activities),
        steps=tuple(events.steps),
        waits=_waits(events),
    )


def _device_activities(events: KinetoEvents, classifier: Classifier) -> Iterable[Activity]:
    launches = [events.launches.get(one.correlation) if one.correlation else None for one in events.device]
    moments = [(launch.thread, launch.start_ns) if launch else ("", 0) for launch in launches]
    world, is_amd = world_of(events.header), "roctracer_version" in events.header
    for one, launch, origin in zip(events.device, launches, origins(events, moments), strict=True):
        yield _activity(one, launch, origin, classifier.rule_of(one.name), world, is_amd)


def _activity(
    one: DeviceEvent, launch: HostEvent | None, origin: Origin, rule: Rule | None, world: int, is_amd: bool
) -> Activity:
    category = rule.category if rule else _CATEGORY[one.kind]
    library = rule.library if rule and category == COMMUNICATION else ""
    communicates = category == COMMUNICATION
    return Activity(
        name=one.name,
        category=category,
        stream=one.stream,
        start_ns=one.start_ns,
        end_ns=one.end_ns,
        shape=_shape(one, launch),
        launched_ns=launch.start_ns if launch else None,
        thread=launch.thread if launch else "",
        ranges=tuple(event.name for event in origin.around),
        unit=origin.unit,
        phase=origin.phase,
        # RCCL keeps the names of NCCL's kernels.
        library="RCCL" if is_amd and library == "NCCL" else library,
        message=message_of(one.name, one.args, origin.around, world) if communicates else NO_MESSAGE,
    )


def _shape(one: DeviceEvent, launch: HostEvent | None) -> str:
    """Grid and block: CUDA tells them of the kernel, ROCm of the launch."""
    told = one.args if "grid" in one.args or launch is None else launch.args
    return f"{told.get('grid', '')}{told.get('block', '')}"


def _waits(events: KinetoEvents) -> tuple[HostEvent, ...]:
    """Calls that return when the device is done."""
    calls = [event for event in (*events.launches.values(), *events.operators) if _BLOCKING.search(event.name)]
    return tuple(sorted(calls, key=lambda event: event.start_ns))


def _rank(events: KinetoEvents, path: Path) -> int:
    """As the trace says, else as the file's name says, else 0."""
    stated = events.header.get("distributedInfo", {}).get("rank")
    if isinstance(stated, int):
        return stated
    named = _RANK_IN_NAME.search(path.name)
    return int(named.group(1)) if named else 0
