"""A communicator that is slow, late or broken on purpose: for tests of overlap, races and faults."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.comm.control import ControlChannel
from overlap.comm.faults import Fault, Faults
from overlap.comm.volume import Collective, WireCounter, wire_bytes
from overlap.shard.piece import Piece

T = TypeVar("T")


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
        self._faults = Faults(fail_on)

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
        call = partial(self._inner.all_gather, pieces, kind)
        self._shape("all_gather", kind, sum(p.full.nbytes for p in pieces), call)

    def reduce_scatter(self, bucket: Tensor, out: Tensor, kind: str, *, accumulate: bool = False) -> None:
        """See `Communicator.reduce_scatter`."""
        call = partial(self._inner.reduce_scatter, bucket, out, kind, accumulate=accumulate)
        self._shape("reduce_scatter", kind, bucket.nbytes, call)

    def all_reduce(self, flat: Tensor, kind: str) -> None:
        """See `Communicator.all_reduce`."""
        self._shape("all_reduce", kind, flat.nbytes, partial(self._inner.all_reduce, flat, kind))

    def broadcast(self, tensor: Tensor, src: int, kind: str) -> None:
        """See `Communicator.broadcast`."""
        self._shape("broadcast", kind, tensor.nbytes, partial(self._inner.broadcast, tensor, src, kind))

    def _shape(self, op: Collective, kind: str, nbytes: int, call: Callable[[], None]) -> None:
        """Delay a call and stretch it to its time on the wire."""
        time.sleep(self._before.get(kind, 0.0) + (self._jitter() if self._jitter else 0.0))
        wire_s = self._latency_s + wire_bytes(op, nbytes, self.world) * self._seconds_per_byte
        end = time.perf_counter() + wire_s
        self._faults.carry_out(call, kind, f"{op} ({kind}) on lane '{self.lane}', rank {self.rank},", None)
        time.sleep(max(0.0, end - time.perf_counter()) + self._after.get(kind, 0.0))


class ShapedControl(ControlChannel):
    """A control channel with faults, whose kinds are "all_max", "gather_object" and the questions of `agree`.

    Args:
        inner: talks to the other ranks.
        fail_on: faults to inject.
    """

    def __init__(self, inner: ControlChannel, fail_on: Sequence[Fault]) -> None:
        super().__init__(inner.communicator)
        self._faults = Faults(fail_on)

    def agree(self, name: str, digest: str) -> None:
        """See `ControlChannel.agree`; a rank alone agrees with itself."""
        self._fail(partial(super().agree, name, digest), name, None)

    def all_max(self, facts: Tensor) -> Tensor:
        """See `ControlChannel.all_max`; a rank alone has its own facts."""
        return self._fail(partial(super().all_max, facts), "all_max", facts)

    def gather_object(self, value: Any) -> list[Any]:
        """See `ControlChannel.gather_object`; a rank alone has its own value, for all."""
        return self._fail(partial(super().gather_object, value), "gather_object", [value] * self.communicator.world)

    def _fail(self, call: Callable[[], T], kind: str, alone: T) -> T:
        return self._faults.carry_out(
            call, kind, f"{kind} on the control channel, rank {self.communicator.rank},", alone
        )
