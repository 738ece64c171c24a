"""Wire volume and bandwidth of collectives: the one home of (n-1)/n. No torch here.

`nbytes` is everywhere what nccl-tests calls size: the bytes of the *whole* tensor, that is the gathered
output of an all-gather, the bucket of a reduce-scatter, the buffer of an all-reduce, broadcast or reduce, what one rank
sends to all, itself included, in an all-to-all.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]

# How often a bandwidth-optimal algorithm moves (n-1)/n of the tensor out of each rank.
_PASSES: Mapping[Collective, int] = {
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_reduce": 2,
    "all_to_all": 1,
    "broadcast": 1,
    "reduce": 1,
}


def total_wire_bytes(op: Collective, nbytes: int, world: int) -> int:
    """Bytes that all ranks together must send: exact, whatever the split into uneven chunks."""
    return _PASSES[op] * nbytes * (world - 1)


def wire_bytes(op: Collective, nbytes: int, world: int) -> int:
    """Bytes that one rank must send: the mean over ranks, rounded down."""
    return total_wire_bytes(op, nbytes, world) // world


def bus_factor(op: Collective, world: int) -> float:
    """Factor from algorithm bandwidth to the speed of a link (nccl-tests, PERFORMANCE.md).

    A broadcast or reduce counts 1, not (n-1)/n: its root has to send or receive every byte once, whatever the number of
    ranks.
    """
    return 1.0 if op in ("broadcast", "reduce") else _PASSES[op] * (world - 1) / world


def algbw(nbytes: int, seconds: float) -> float:
    """Algorithm bandwidth in bytes per second: size over time."""
    return nbytes / seconds


def busbw(op: Collective, nbytes: int, seconds: float, world: int) -> float:
    """Bus bandwidth in bytes per second: independent of the number of ranks when the link is the limit."""
    return algbw(nbytes, seconds) * bus_factor(op, world)


@dataclass(frozen=True)
class WireTotals:
    """Bytes this rank sent and calls it made, by kind; `later - earlier` is what lay between."""

    sent: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent, all kinds together."""
        return sum(self.sent.values())

    def __sub__(self, earlier: "WireTotals") -> "WireTotals":
        return WireTotals(_difference(self.sent, earlier.sent), _difference(self.calls, earlier.calls))


def _difference(later: Mapping[str, int], earlier: Mapping[str, int]) -> dict[str, int]:
    changes = {kind: count - earlier.get(kind, 0) for kind, count in later.items()}
    return {kind: change for kind, change in changes.items() if change}


class WireCounter:
    """Counts what this rank sends. Thread safe: the lane adds while others take snapshots.

    Args:
        measured: True where every message is counted as it is sent, False where a library moves the bytes
            and the count is the formula's.
    """

    def __init__(self, *, measured: bool) -> None:
        self.measured = measured
        self._sent: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, kind: str, nbytes: int) -> None:
        """Count one call of `kind` that sent `nbytes`."""
        with self._lock:
            self._sent[kind] = self._sent.get(kind, 0) + nbytes
            self._calls[kind] = self._calls.get(kind, 0) + 1

    def snapshot(self) -> WireTotals:
        """The totals so far."""
        with self._lock:
            return WireTotals(dict(self._sent), dict(self._calls))
