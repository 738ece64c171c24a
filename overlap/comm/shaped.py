"""A communicator that is slow, late or broken on purpose: for tests of overlap, races and faults."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.comm.volume import Collective, WireCounter, wire_bytes
from overlap.errors import DesyncError, message
from overlap.shard.piece import Piece


@dataclass(frozen=True)
class Fault:
    """What goes wrong in the `call`-th call (from 0) of `kind`.

    Attributes:
        kind: as given to the collective.
        call: which call of that kind fails.
        action: "raise" a DesyncError here; or "skip" the transfer, which leaves the peers waiting.
    """

    kind: str
    call: int = 0
    action: Literal["raise", "skip"] = "raise"


class ShapedCommunicator:
    """Wraps any `Communicator`. Sleeps release the GIL, so compute really runs beside a slow transfer.

    Args:
        inner: does the transfers; its counter, lane and scratch are shown as they are.
        bytes_per_second: a call lasts at least its wire bytes over this.
        latency_s: and this much more.
        jitter: seconds to wait before a call starts, asked anew each time.
        before: seconds, by kind, to wait before a call starts: a missing wait then reads old data.
        after: seconds, by kind, to wait after the transfer before a call returns.
        fail_on: faults to inject.
    """

    def __init__(
        self,
        inner: Communicator,
        *,
        bytes_per_second: float | None = None,
        latency_s: float = 0.0,
        jitter: Callable[[], float] | None = None,
        before: dict[str, float] | None = None,
        after: dict[str, float] | None = None,
        fail_on: Sequence[Fault] = (),
    ) -> None:
        self._inner = inner
        self._seconds_per_byte = 1 / bytes_per_second if bytes_per_second else 0.0
        self._latency_s = latency_s
        self._jitter = jitter
        self._before = before or {}
        self._after = after or {}
        self._faults = {(fault.kind, fault.call): fault for fault in fail_on}
        self._calls: Counter[str] = Counter()

    @property
    def rank(self) -> int:
        """The inner communicator's."""
        return self._inner.rank

    @property
    def world(self) -> int:
        """The inner communicator's."""
        return self._inner.world

    @property
    def lane(self) -> str:
        """The inner communicator's."""
        return self._inner.lane

    @property
    def counter(self) -> WireCounter:
        """The inner communicator's."""
        return self._inner.counter

    @property
    def scratch_bytes(self) -> int:
        """The inner communicator's."""
        return self._inner.scratch_bytes

    def all_gather(self, pieces: Sequence[Piece], kind: str) -> None:
        """See `Communicator.all_gather`."""
        with self._shape("all_gather", kind, sum(p.full.nbytes for p in pieces)) as transfer:
            if transfer:
                self._inner.all_gather(pieces, kind)

    def reduce_scatter(self, bucket: Tensor, out: Tensor, kind: str, *, accumulate: bool = False) -> None:
        """See `Communicator.reduce_scatter`."""
        with self._shape("reduce_scatter", kind, bucket.nbytes) as transfer:
            if transfer:
                self._inner.reduce_scatter(bucket, out, kind, accumulate=accumulate)

    def all_reduce(self, flat: Tensor, kind: str) -> None:
        """See `Communicator.all_reduce`."""
        with self._shape("all_reduce", kind, flat.nbytes) as transfer:
            if transfer:
                self._inner.all_reduce(flat, kind)

    def broadcast(self, tensor: Tensor, src: int, kind: str) -> None:
        """See `Communicator.broadcast`."""
        with self._shape("broadcast", kind, tensor.nbytes) as transfer:
            if transfer:
                self._inner.broadcast(tensor, src, kind)

    @contextmanager
    def _shape(self, op: Collective, kind: str, nbytes: int) -> Iterator[bool]:
        """Delay what runs inside and stretch it to its time on the wire; yields whether to transfer."""
        transfer = self._transfers(op, kind)
        time.sleep(self._before.get(kind, 0.0) + (self._jitter() if self._jitter else 0.0))
        wire_s = self._latency_s + wire_bytes(op, nbytes, self.world) * self._seconds_per_byte
        end = time.perf_counter() + wire_s
        yield transfer
        time.sleep(max(0.0, end - time.perf_counter()) + self._after.get(kind, 0.0))

    def _transfers(self, op: Collective, kind: str) -> bool:
        fault = self._faults.get((kind, self._calls[kind]))
        self._calls[kind] += 1
        if fault is None:
            return True
        if fault.action == "raise":
            subject = f"{op} ({kind}) on lane '{self.lane}', rank {self.rank},"
            raise DesyncError(message(subject, "complete", f"an injected {fault}", "expect it in this test"))
        return False
