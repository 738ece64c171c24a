"""Ranges that FSDP2 leaves on the host, and what they say without saying it: whose module code runs between them.

    host   |pre_forward|-|pre_forward (a)|~~~~~~~~|post_forward (a)|-----|post_forward|
                       |----------------- forward --------------------|
                                         |- forward (a) -|                  made here: FSDP2 names its hooks only

In backward the same from ``pre_backward`` to the first ``post_backward_*``. Innermost is what was entered last.
"""

import re
from collections.abc import Iterable
from operator import attrgetter

from overlap.profiling.nesting import HostEvent

_MARK = "FSDP::"
# A module whose parameters lie on several meshes has a range per mesh: [pg=4].
_OF_UNIT = re.compile(r"^FSDP::(?P<phase>\w+)(?: \((?P<unit>.+)\))?(?: \[pg=\d+\])?$")
_PREFETCH = re.compile(r"^FSDP::(?P<phase>\w+) for (?P<unit>.*)$")
PASSES = ("forward", "backward")
_PASS_BEGINS = "root_pre_forward"
_BACKWARD_ENDS = "root_post_backward_callback"

_Key = tuple[str, str, str]
"""(thread, forward or backward, unit)"""


def fsdp_unit_and_phase(name: str) -> tuple[str, str] | None:
    """What a range of FSDP2 names, the root as ""; None for ranges of others."""
    found = _OF_UNIT.match(name) or _PREFETCH.match(name)
    return (found["unit"] or "", found["phase"]) if found else None


def module_code(ranges: Iterable[HostEvent]) -> list[HostEvent]:
    """A range ``FSDP::forward (unit)`` or ``FSDP::backward (unit)`` for each stretch between the hooks of a unit.

    Hooks that nothing answers, as where the recording begins or ends between them, make none.
    """
    found: list[HostEvent] = []
    began: dict[_Key, int] = {}
    for event in sorted((one for one in ranges if one.name.startswith(_MARK)), key=attrgetter("start_ns")):
        unit, phase = fsdp_unit_and_phase(event.name) or ("", "")
        if phase == _PASS_BEGINS:
            began.clear()  # what is still open was broken off by an exception
        elif phase == _BACKWARD_ENDS:
            # The last unit of backward may have no input with a gradient: nothing but the end of backward ends it.
            found += [_code(began.pop(key), event, key) for key in list(began) if key[1] == "backward"]
        for each in PASSES:
            key = (event.thread, each, unit)
            if phase == f"pre_{each}":
                began.setdefault(key, event.end_ns)  # modules sharded as one enter one by one and leave together
            elif phase.startswith(f"post_{each}") and key in began:
                found.append(_code(began.pop(key), event, key))
    return found


def _code(began_ns: int, until: HostEvent, key: _Key) -> HostEvent:
    thread, phase, unit = key
    name = f"{_MARK}{phase} ({unit})" if unit else f"{_MARK}{phase}"
    return HostEvent(name, thread, began_ns, until.start_ns, {})
