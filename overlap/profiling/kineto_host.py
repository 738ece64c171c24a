"""A Kineto trace without a device: operators on threads, collectives of gloo, ranges of our lanes.

    thread 1   |forward blocks.0 |aten::linear|  waits   |    outermost operators are compute; what is between is not
    thread 2   |overlap:gather blocks.1|                      ranges that the manifest knows are communication
    thread 3      |gloo:all_gather|                           gloo's own threads do what thread 1 has asked for

Wrappers (autograd's nodes, c10d's calls) are not compute themselves: hooks run inside them, and waits in hooks.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from overlap.profiling.classify import Classifier, Rule
from overlap.profiling.kineto_events import KinetoEvents
from overlap.profiling.kineto_units import Origin, origins
from overlap.profiling.messages import LANE_COLLECTIVES, message_of, world_of
from overlap.profiling.nesting import HostEvent, Moment, enclosing
from overlap.profiling.recording import COMMUNICATION, COMPUTE, Activity, Message

_WRAPPERS = ("autograd", "torch", "c10d", "c10d_functional", "_c10d_functional", "profiler")
_CALLS = ("c10d",)
_GLOO = "gloo:"

Classified = tuple[HostEvent, Rule]


def host_activities(events: KinetoEvents, classifier: Classifier) -> list[Activity]:
    """Compute and communication of the host; empty where the trace shows no communication at all.

    Without any, a trace of one process on a CPU would be all compute: nothing that a report could explain.
    """
    ranges = [(event, rule) for event in events.ranges if (rule := classifier.rule_of(event.name)) is not None]
    ranges = _outermost(ranges)
    if not any(rule.category == COMMUNICATION for _, rule in ranges):
        return []
    calls = _calls(events, [event for event, _ in ranges if event.name.startswith(_GLOO)])
    world = world_of(events.header)
    found = _named(events, [(calls.get(_place(event), event), event, rule) for event, rule in ranges], world)
    return [*found, *_computing(events, [event for event, _ in ranges])]


def _outermost(ranges: Sequence[Classified]) -> list[Classified]:
    """Of ranges inside each other on one thread the outer one: a gather of ours holds sends and receives of gloo."""
    kept: list[Classified] = []
    reach: dict[str, int] = defaultdict(int)
    for event, rule in sorted(ranges, key=lambda one: (one[0].start_ns, -one[0].end_ns)):
        if event.end_ns > reach[event.thread]:
            kept.append((event, rule))
            reach[event.thread] = event.end_ns
    return kept


def _calls(events: KinetoEvents, gloo: Sequence[HostEvent]) -> dict[Moment, HostEvent]:
    """Place of gloo's work -> the call that asked for it: gloo works in the order of calls, so they go by number."""
    asked = [event for event in events.operators if event.name.partition("::")[0] in _CALLS]
    asked.sort(key=attrgetter("start_ns"))
    if len(asked) != len(gloo):
        return {}
    return dict(zip(map(_place, sorted(gloo, key=attrgetter("start_ns"))), asked, strict=True))


def _place(event: HostEvent) -> Moment:
    return event.thread, event.start_ns


def _named(events: KinetoEvents, ranges: Sequence[tuple[HostEvent, HostEvent, Rule]], world: int) -> Iterable[Activity]:
    """Ranges as activities, each with what its call lay in."""
    around = origins(events, [_place(call) for call, _, _ in ranges])
    for (call, event, rule), origin in zip(ranges, around, strict=True):
        one = _activity(event, origin)
        if rule.category == COMMUNICATION:
            one = replace(one, library=rule.library, message=_message(event, one.phase, world))
        yield replace(
            one, category=rule.category, launched_ns=call.start_ns if call is not event else None, thread=call.thread
        )


def _message(event: HostEvent, phase: str, world: int) -> Message:
    """Gloo's threads share the work of all its groups, whose names a trace does not tell; a lane is a group."""
    if event.name.startswith(_GLOO):
        return replace(message_of(event.name, {}, [event], world), group="gloo")
    return Message(collective=LANE_COLLECTIVES.get(phase, ""), group=f"overlap:{phase}")


def _computing(events: KinetoEvents, ranges: Sequence[HostEvent]) -> Iterable[Activity]:
    """Outermost operators that work, outside of the ranges."""
    working = [event for event in events.operators if _works(event.name)]
    inside = enclosing(ranges, [_place(event) for event in working])
    free = [event for event, around in zip(working, inside, strict=True) if not around]
    free.sort(key=lambda event: (event.start_ns, -event.end_ns))
    outer = []
    reach: dict[str, int] = defaultdict(int)
    for event in free:
        if event.end_ns > reach[event.thread]:
            outer.append(event)
            reach[event.thread] = event.end_ns
    around = origins(events, [_place(event) for event in outer])
    return (_activity(event, origin) for event, origin in zip(outer, around, strict=True))


def _works(name: str) -> bool:
    namespace, colons, _ = name.partition("::")
    return bool(colons) and namespace not in _WRAPPERS


def _activity(event: HostEvent, origin: Origin) -> Activity:
    return Activity(
        name=event.name,
        category=COMPUTE,
        stream=f"thread {event.thread}",
        start_ns=event.start_ns,
        end_ns=event.end_ns,
        thread=event.thread,
        shape=str(event.args.get("Input Dims", "")),
        ranges=tuple(one.name for one in origin.around),
        unit=origin.unit,
        phase=origin.phase,
    )
