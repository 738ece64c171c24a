"""What happened, as data: one span per op and lane, kept per step.

    gather   |AG0|AG1|          a span: lane, kind, unit, bytes, [start, end) in host monotonic ns
    compute      |F0 |F1 |      a "stall" span: compute stood still until the unit it names was there

The engine holds a ``Timeline | None``: with observation off it pays for one ``is not None``, nothing else.
No torch here: a timeline is read, measured and drawn on machines that have none.
"""

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from overlap.errors import ConfigError, message

COMPUTE = "compute"
STALL = "stall"
COMM_LANES = ("gather", "reduce", "replicate")
LANES = (COMPUTE, *COMM_LANES, "host", "disk")
"""Every lane, in the order in which reports list them."""

FORMAT = "overlap-timeline-1"
"""How a reader knows a timeline, by its first bytes."""


@dataclass(frozen=True, slots=True)
class Span:
    """One op on one lane of one rank, ``[start_ns, end_ns)``."""

    lane: str
    """compute, gather, reduce, replicate, host or disk."""
    kind: str
    """What ran: forward, backward, pack, update, norm, stall, gather, reduce, replicate, ..."""
    unit: str
    """FQN of the unit, "" for the whole model. Of a stall: the unit it waited for."""
    bytes: int
    """Bytes this rank puts on the wire for communication, else bytes of memory touched."""
    start_ns: int
    """Host monotonic clock, ns. The CUDA backend maps event times onto this clock."""
    end_ns: int
    """Host monotonic clock, ns; not before ``start_ns``."""
    step: int
    """Number of the step whose plan issued the op."""
    rank: int
    """Global rank."""

    @property
    def busy(self) -> bool:
        """Whether compute did work: on the compute lane, and not a stall."""
        return self.lane == COMPUTE and self.kind != STALL

    @property
    def stalled(self) -> bool:
        """Whether compute stood still, waiting for ``unit``."""
        return self.lane == COMPUTE and self.kind == STALL

    @property
    def communicates(self) -> bool:
        """Whether the span moved data between ranks; on one rank a gather is a copy of no wire bytes."""
        return self.lane in COMM_LANES and self.bytes > 0


_FIELDS = tuple(field.name for field in fields(Span))


class Timeline:
    """Spans by step; any thread may add, the memory stays bounded by ``keep_steps``."""

    def __init__(self, keep_steps: int | None = None) -> None:
        """Start empty.

        Args:
            keep_steps: how many of the latest steps to remember; None remembers all of them.
        """
        if keep_steps is not None and keep_steps < 1:
            cure = "pass None to remember every step"
            raise ConfigError(message("keep_steps", "be 1 or more, or None", keep_steps, cure))
        self._keep = keep_steps
        self._by_step: dict[int, list[Span]] = {}
        self._opening = threading.Lock()

    def add(self, span: Span) -> None:
        """Record one span; takes a lock only for the first span of a step."""
        spans = self._by_step.get(span.step)
        if spans is None:
            spans = self._open(span.step)
        spans.append(span)

    def extend(self, spans: Iterable[Span]) -> None:
        """Record many spans, e.g. those of another rank."""
        for span in spans:
            self.add(span)

    def steps(self) -> list[int]:
        """The steps remembered, ascending."""
        return sorted(self._by_step)

    def ranks(self) -> list[int]:
        """The ranks that recorded something, ascending."""
        return sorted({span.rank for span in self})

    def of_step(self, step: int) -> list[Span]:
        """The spans of one step in order of start; empty for a step that is not remembered."""
        return sorted(self._by_step.get(step, ()), key=_chronological)

    def clear(self) -> None:
        """Forget everything."""
        with self._opening:
            self._by_step = {}

    def __iter__(self) -> Iterator[Span]:
        """Step by step, each in order of start."""
        for step in self.steps():
            yield from self.of_step(step)

    def __len__(self) -> int:
        """Spans remembered."""
        return sum(len(spans) for spans in list(self._by_step.values()))

    def to_json(self, path: str | Path) -> None:
        """Write every span to ``path``; rows follow the ``fields`` header, so the file stays small."""
        rows = [[getattr(span, name) for name in _FIELDS] for span in self]
        document = {"format": FORMAT, "fields": _FIELDS, "spans": rows}
        Path(path).write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | Path) -> Self:
        """Read what ``to_json`` wrote."""
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        if found != FORMAT:
            cure = "write it with Timeline.to_json (timeline.json of `overlap train` is a Perfetto trace)"
            raise ConfigError(message(f"format of {Path(path).name}", f"be {FORMAT!r}", found, cure))
        timeline = cls()
        timeline.extend(Span(**dict(zip(document["fields"], row, strict=True))) for row in document["spans"])
        return timeline

    def _open(self, step: int) -> list[Span]:
        with self._opening:
            spans = self._by_step.setdefault(step, [])
            while self._keep is not None and len(self._by_step) > self._keep:
                # A lane that reports late about a forgotten step evicts that step again: its span is dropped.
                del self._by_step[min(self._by_step)]
            return spans


def _chronological(span: Span) -> tuple[int, int]:
    return span.start_ns, span.end_ns
