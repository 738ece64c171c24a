"""Collectives over a transport, as they are timed: input, output, and what torch has in place only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from overlap.bench.collective.case import Case
from overlap.bench.collective.transports import Transport
from overlap.comm.volume import Collective


def _all_gather(transport: Transport, case: Case, send: Tensor, recv: Tensor) -> None:
    transport.all_gather([recv], [send])


def _reduce_scatter(transport: Transport, case: Case, send: Tensor, recv: Tensor) -> None:
    transport.reduce_scatter(send.view(case.world, -1), recv)


def _all_reduce(transport: Transport, case: Case, send: Tensor, recv: Tensor) -> None:
    _copy(send, recv)
    transport.all_reduce(recv)


def _all_to_all(transport: Transport, case: Case, send: Tensor, recv: Tensor) -> None:
    transport.all_to_all(send.view(case.world, -1), recv.view(case.world, -1))


def _broadcast(transport: Transport, case: Case, send: Tensor, recv: Tensor) -> None:
    if case.rank == case.root:
        _copy(send, recv)
    transport.broadcast(recv, case.root)


def _reduce(transport: Transport, case: Case, send: Tensor, recv: Tensor) -> None:
    _copy(send, recv)
    transport.reduce(recv, case.root)


def _copy(send: Tensor, recv: Tensor) -> None:
    if send.data_ptr() != recv.data_ptr():  # torch has this in place only: the copy is part of the time
        recv.copy_(send)


CALLS: dict[Collective, Callable[[Transport, Case, Tensor, Tensor], None]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
}


def _gather_all(transport: Transport, sends: Sequence[Tensor], recvs: Sequence[Tensor]) -> None:
    transport.all_gather(recvs, sends)


def _reduce_scatter_all(transport: Transport, sends: Sequence[Tensor], recvs: Sequence[Tensor]) -> None:
    transport.reduce_scatter_coalesced(sends, recvs)


def _all_reduce_all(transport: Transport, sends: Sequence[Tensor], recvs: Sequence[Tensor]) -> None:
    for send, recv in zip(sends, recvs, strict=True):
        _copy(send, recv)
    transport.all_reduce_coalesced(recvs)


COALESCED_CALLS: dict[Collective, Callable[[Transport, Sequence[Tensor], Sequence[Tensor]], None]] = {
    "all_gather": _gather_all,
    "reduce_scatter": _reduce_scatter_all,
    "all_reduce": _all_reduce_all,
}
