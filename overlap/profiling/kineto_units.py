"""Who a kernel of a Kineto trace belongs to: the ranges and modules around its launch.

forward   thread 1   |- Block_3 |- aten::linear (sequence 17) -|-|
backward  thread 9   |- AddmmBackward0 (sequence 17, forward thread 1) |- launch -|-|
                                                                       belongs to Block_3, too
"""

from collections.abc import Sequence
from typing import NamedTuple

from overlap.profiling.attribution import unit_and_phase
from overlap.profiling.kineto_events import KinetoEvents
from overlap.profiling.nesting import HostEvent, Moment, enclosing

_FORWARD_THREAD = "Fwd thread id"
_SEQUENCE = "Sequence number"


class Origin(NamedTuple):
    """Where a launch comes from."""

    around: tuple[HostEvent, ...]
    """Ranges that were open, outermost first."""
    unit: str
    phase: str


def origins(events: KinetoEvents, moments: Sequence[Moment]) -> list[Origin]:
    """The origin of each launch, given as (thread, ns)."""
    around = enclosing(events.ranges, moments)
    forward = _forward_ranges(events, moments)
    return [_origin(*ranges) for ranges in zip(around, forward, strict=True)]


def _origin(around: tuple[HostEvent, ...], forward: Sequence[HostEvent]) -> Origin:
    unit, phase = unit_and_phase(tuple(event.name for event in around))
    if forward and not unit:
        unit, _ = unit_and_phase(tuple(event.name for event in forward))
        phase = phase or "backward"
    return Origin(around, unit, phase)


def _forward_ranges(events: KinetoEvents, moments: Sequence[Moment]) -> list[tuple[HostEvent, ...]]:
    """Per launch inside a node of autograd the ranges that were open when the node was made; () elsewhere."""
    nodes = [event for event in events.operators if event.args.get(_FORWARD_THREAD)]
    makers: dict[int, HostEvent] = {}
    for event in sorted(events.operators, key=lambda event: event.start_ns):
        sequence = event.args.get(_SEQUENCE, -1)
        if sequence >= 0 and not event.args.get(_FORWARD_THREAD):
            makers[sequence] = event  # the last one is the innermost
    made = [_maker(stack, makers) for stack in enclosing(nodes, moments)]
    return enclosing(events.ranges, [(maker.thread, maker.start_ns) if maker else ("", 0) for maker in made])


def _maker(stack: Sequence[HostEvent], makers: dict[int, HostEvent]) -> HostEvent | None:
    sequences = (event.args.get(_SEQUENCE, -1) for event in reversed(stack))
    return next((makers[sequence] for sequence in sequences if sequence in makers), None)
