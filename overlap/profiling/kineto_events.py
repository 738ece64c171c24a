"""One Kineto trace, sorted by what its events are: device work, launches, host ranges, operators, steps.

Categories have had other names over the years: ``Kernel`` of 2021 is ``kernel`` today. What decides is the category,
never an argument: inductor writes ``stream: 0`` into host events.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from overlap.errors import ConfigError, message
from overlap.profiling.fsdp_ranges import module_code
from overlap.profiling.json_stream import TraceStream, nanoseconds
from overlap.profiling.nesting import HostEvent

STEP_MARK = "ProfilerStep"
MODULE_MARK = "nn.Module: "


class DeviceEvent(NamedTuple):
    """Work on a device."""

    kind: str
    """kernel, memcpy or memset."""
    name: str
    device: str
    stream: str
    start_ns: int
    end_ns: int
    correlation: int | None
    """Number it shares with its launch."""
    args: Mapping[str, Any]


@dataclass
class KinetoEvents:
    """The events of one trace that mean something to a report."""

    header: Mapping[str, Any]
    device: list[DeviceEvent] = field(default_factory=list)
    launches: dict[int, HostEvent] = field(default_factory=dict)
    """By correlation: the runtime calls."""
    ranges: list[HostEvent] = field(default_factory=list)
    """User annotations, modules, and the module code between hooks of FSDP2."""
    operators: list[HostEvent] = field(default_factory=list)
    steps: list[HostEvent] = field(default_factory=list)


_Handler = Callable[[KinetoEvents, dict[str, Any], int], None]


def read_events(path: str | Path) -> KinetoEvents:
    """Read a trace, plain or gzip."""
    stream = TraceStream(path)
    found = KinetoEvents(stream.header)
    try:
        for event in stream.events():
            if event.get("ph") == "X":
                handler = _HANDLERS.get(event.get("cat", ""))
                if handler is not None:
                    handler(found, event, nanoseconds(event["ts"]))
    except KeyError as error:
        cure = "record the trace anew"
        raise ConfigError(message(f"events of {stream.path.name}", f"have {error}", "one without", cure)) from error
    found.ranges += module_code(found.ranges)
    found.steps.sort(key=lambda step: step.start_ns)
    return found


def _device(kind: str) -> _Handler:
    def handle(found: KinetoEvents, event: dict[str, Any], start_ns: int) -> None:
        args = event.get("args", {})
        stream = str(args.get("stream", event.get("tid")))
        end_ns = start_ns + nanoseconds(event["dur"])
        correlation = args.get("correlation")
        device = str(args.get("device", event.get("pid")))
        found.device.append(DeviceEvent(kind, event["name"], device, stream, start_ns, end_ns, correlation, args))

    return handle


def _launch(found: KinetoEvents, event: dict[str, Any], start_ns: int) -> None:
    correlation = event.get("args", {}).get("correlation")
    if correlation is not None:
        found.launches[correlation] = _host(event, start_ns)


def _range(found: KinetoEvents, event: dict[str, Any], start_ns: int) -> None:
    if event["name"].startswith(STEP_MARK):
        found.steps.append(_host(event, start_ns))
    else:
        found.ranges.append(_host(event, start_ns))


def _operator(found: KinetoEvents, event: dict[str, Any], start_ns: int) -> None:
    if event["name"].startswith(STEP_MARK):  # in 2021 a step was an operator
        _range(found, event, start_ns)
    else:
        found.operators.append(_host(event, start_ns))


def _python(found: KinetoEvents, event: dict[str, Any], start_ns: int) -> None:
    if event["name"].startswith(MODULE_MARK):
        found.ranges.append(_host(event, start_ns))


def _host(event: dict[str, Any], start_ns: int) -> HostEvent:
    end_ns = start_ns + nanoseconds(event["dur"])
    return HostEvent(event["name"], str(event["tid"]), start_ns, end_ns, event.get("args", {}))


_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(("kernel", "Kernel"), _device("kernel")),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), _device("memcpy")),
    **dict.fromkeys(("gpu_memset", "Memset"), _device("memset")),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), _launch),
    **dict.fromkeys(("cpu_op", "Operator"), _operator),
    "user_annotation": _range,
    "python_function": _python,
}
