"""Which activities are measured, and how their ends are read: window, rounding, memsets, peer copies."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from overlap.errors import ConfigError, message
from overlap.profiling.recording import COMMUNICATION, COMPUTE, COPY, MEMSET, Activity, Recording

_NS_PER_US = 1000
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "window": ("full", "steps"),
    "rounding": ("none", "hta"),
    "memset": ("compute", "other"),
    "peer_copies": ("copy", "comm"),
}


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """How a recording is read. The values are those of ``overlap report``."""

    window: str = "full"
    """full: everything recorded. steps: what the host launched before the last step began; its device work is
    complete, that of the last step may be cut off. One step alone is kept whole."""
    rounding: str = "none"
    """none: exact. hta: starts up and ends down to whole µs, as HolisticTraceAnalysis does."""
    memset: str = "other"
    """compute: a memset is a kernel. other: it counts with the copies, as in HolisticTraceAnalysis."""
    peer_copies: str = "copy"
    """copy: copies between devices are copies. comm: they are communication (copy-engine collectives)."""
    comm_kernels: str | None = None
    """TOML file of rules that go before the shipped ones."""
    flops: float | None = None
    """Model FLOPs of one step on one rank; with ``peak_flops`` it gives MFU."""
    peak_flops: float | None = None
    """What one device could do, FLOP/s."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                near = get_close_matches(str(value), choices, n=1)
                cure = f"did you mean {near[0]}?" if near else "choose one"
                raise ConfigError(message(name, f"be one of {', '.join(choices)}", value, cure))
        if self.comm_kernels is not None and not Path(self.comm_kernels).is_file():
            cure = "pass a TOML file of rules"
            raise ConfigError(message("comm_kernels", "be a file", self.comm_kernels, cure))
        for name in ("flops", "peak_flops"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(message(name, "be a positive number", value, "leave it out to get no MFU"))
        if (self.flops is None) != (self.peak_flops is None):
            cure = "give both, or neither"
            raise ConfigError(message("flops and peak_flops", "come together", "one of them", cure))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def select(recording: Recording, options: ReportOptions) -> tuple[Activity, ...]:
    """The activities to measure, each with the category it counts as."""
    chosen: Iterable[Activity] = recording.activities
    if options.window == "steps":
        chosen = _of_complete_steps(recording)
    if options.rounding == "hta":
        chosen = map(_rounded, chosen)
    memset = COMPUTE if options.memset == "compute" else COPY
    return tuple(replace(one, category=memset) if one.category == MEMSET else one for one in _peers(chosen, options))


def _of_complete_steps(recording: Recording) -> Iterable[Activity]:
    if not recording.steps:
        cure = "call profiler.step() (or mark steps in NVTX) in the program, or use --window full"
        raise ConfigError(message("window 'steps'", "find steps in the recording", f"none in {recording.source}", cure))
    if len(recording.steps) == 1:
        return recording.activities
    end_ns = recording.steps[-1].start_ns
    if all(_issued_ns(one) is None for one in recording.activities):
        return (one for one in recording.activities if one.start_ns < end_ns)
    # Work whose launch was not recorded was launched before recording began: it belongs to no step.
    return (one for one in recording.activities if (issued := _issued_ns(one)) is not None and issued < end_ns)


def _issued_ns(one: Activity) -> int | None:
    """When the host came to it: at its launch; what a thread of the host runs itself it comes to when it runs it."""
    return one.start_ns if one.launched_ns is None and one.thread else one.launched_ns


def _rounded(one: Activity) -> Activity:
    start_ns = -(-one.start_ns // _NS_PER_US) * _NS_PER_US
    end_ns = max(one.end_ns // _NS_PER_US * _NS_PER_US, start_ns)
    return replace(one, start_ns=start_ns, end_ns=end_ns)


def _peers(activities: Iterable[Activity], options: ReportOptions) -> Iterable[Activity]:
    if options.peer_copies == "copy":
        return activities
    return (
        replace(one, category=COMMUNICATION, library="copy engine") if is_peer_copy(one) else one for one in activities
    )


def is_peer_copy(activity: Activity) -> bool:
    """Whether a copy went from one device to another."""
    return activity.category == COPY and ("PtoP" in activity.name or "Peer" in activity.name)
