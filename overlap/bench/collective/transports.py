"""Who carries a call: torch's own collectives over gloo or NCCL, or the communicators that the engine uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from overlap import _compat
from overlap.comm.collective import Communicator
from overlap.comm.exchange import Exchange
from overlap.comm.groups import communicator_for, lane_group
from overlap.comm.message import Message
from overlap.shard.piece import Piece

KIND = "bench"
_REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


class Transport(Protocol):
    """Collectives over all ranks. When one returns it is complete on CPU, enqueued on the current stream on CUDA."""

    @property
    def device(self) -> torch.device:
        """Of the tensors that it carries."""

    def all_gather(self, fulls: Sequence[Tensor], locals_: Sequence[Tensor]) -> None:
        """Fill each of ``fulls`` with its local tensor of all ranks, in one call."""

    def reduce_scatter(self, bucket: Tensor, out: Tensor) -> None:
        """Reduce row ``rank`` of all ranks' [world, S] into [S]."""

    def all_reduce(self, flat: Tensor) -> None:
        """Reduce in place."""

    def reduce_scatter_coalesced(self, buckets: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """The same with many tensors in one call."""

    def all_reduce_coalesced(self, flats: Sequence[Tensor]) -> None:
        """The same with many tensors in one call."""

    def all_to_all(self, send: Tensor, recv: Tensor) -> None:
        """Row r of [world, S] goes to rank r."""

    def broadcast(self, flat: Tensor, root: int) -> None:
        """Copy the root's to all ranks."""

    def reduce(self, flat: Tensor, root: int) -> None:
        """Reduce in place on the root; what other ranks are left with is not defined."""


class TorchTransport:
    """torch.distributed as users call it.

    Args:
        group: of all ranks.
        device: of the tensors.
        redop: of reductions.
    """

    def __init__(self, group: ProcessGroup, device: torch.device, redop: str) -> None:
        self.device = device
        self._group, self._redop = group, _REDOPS[redop]

    def all_gather(self, fulls: Sequence[Tensor], locals_: Sequence[Tensor]) -> None:
        """See `Transport`."""
        if len(fulls) == 1:
            _compat.all_gather(self._group, fulls[0], locals_[0])
        else:
            _compat.all_gather_coalesced(self._group, fulls, locals_)

    def reduce_scatter(self, bucket: Tensor, out: Tensor) -> None:
        """See `Transport`."""
        _compat.reduce_scatter(self._group, out, bucket.view(-1), self._redop)

    def all_reduce(self, flat: Tensor) -> None:
        """See `Transport`."""
        dist.all_reduce(flat, op=self._redop, group=self._group)

    def reduce_scatter_coalesced(self, buckets: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """See `Transport`."""
        _compat.reduce_scatter_coalesced(self._group, outs, [bucket.view(-1) for bucket in buckets], self._redop)

    def all_reduce_coalesced(self, flats: Sequence[Tensor]) -> None:
        """See `Transport`."""
        _compat.all_reduce_coalesced(self._group, flats, self._redop)

    def all_to_all(self, send: Tensor, recv: Tensor) -> None:
        """See `Transport`."""
        dist.all_to_all_single(recv, send, group=self._group)

    def broadcast(self, flat: Tensor, root: int) -> None:
        """See `Transport`."""
        dist.broadcast(flat, group_src=root, group=self._group)

    def reduce(self, flat: Tensor, root: int) -> None:
        """See `Transport`."""
        dist.reduce(flat, group_dst=root, op=self._redop, group=self._group)


class OwnTransport:
    """What the engine uses: pairwise exchanges on CPU, NCCL on CUDA. On the wire it sums; an average divides behind it.

    Args:
        communicator: carries all but the all-to-all.
        exchange: carries that, by the messages that pairwise reductions begin with; None on CUDA.
        device: of the tensors.
        divisor: of sums; 1 leaves them.
    """

    def __init__(
        self, communicator: Communicator, exchange: Exchange | None, device: torch.device, divisor: int = 1
    ) -> None:
        self.device = device
        self._communicator, self._exchange, self._divisor = communicator, exchange, divisor

    def all_gather(self, fulls: Sequence[Tensor], locals_: Sequence[Tensor]) -> None:
        """See `Transport`."""
        self._communicator.all_gather([Piece(local, full) for local, full in zip(locals_, fulls, strict=True)], KIND)

    def reduce_scatter(self, bucket: Tensor, out: Tensor) -> None:
        """See `Transport`."""
        self._communicator.reduce_scatter(bucket, out, KIND)
        self._divide(out)

    def all_reduce(self, flat: Tensor) -> None:
        """See `Transport`."""
        self._communicator.all_reduce(flat, KIND)
        self._divide(flat)

    def reduce_scatter_coalesced(self, buckets: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """See `Transport`."""
        raise AssertionError("settings refuse it: the engine reduces one flat bucket")

    def all_reduce_coalesced(self, flats: Sequence[Tensor]) -> None:
        """See `Transport`."""
        raise AssertionError("settings refuse it: the engine reduces one flat bucket")

    def all_to_all(self, send: Tensor, recv: Tensor) -> None:
        """See `Transport`."""
        assert self._exchange is not None, "settings refuse it on CUDA"
        rank, peers = self._communicator.rank, set(range(len(send))) - {self._communicator.rank}
        with self._exchange.call(f"all_to_all ({KIND})", send.nbytes) as transfer:
            transfer.move([Message(recv[peer], peer) for peer in peers], [Message(send[peer], peer) for peer in peers])
        recv[rank].copy_(send[rank])

    def broadcast(self, flat: Tensor, root: int) -> None:
        """See `Transport`."""
        self._communicator.broadcast(flat, root, KIND)

    def reduce(self, flat: Tensor, root: int) -> None:
        """See `Transport`."""
        raise AssertionError("settings refuse it: the engine reduces for all ranks")

    def _divide(self, sums: Tensor) -> None:
        if self._divisor != 1:
            sums.div_(self._divisor)


def open_transport(name: str, device: torch.device, redop: str, lane: str = KIND) -> Transport:
    """Join all ranks. A collective.

    Args:
        name: gloo, nccl or overlap.
        device: of ``overlap``'s and ``nccl``'s tensors.
        redop: of reductions.
        lane: each has a group, and so an order, of its own.
    """
    if name == "overlap":
        communicator = communicator_for(None, lane, device.type)
        exchange = Exchange(lane_group(None, lane, backend="gloo"), lane) if device.type == "cpu" else None
        return OwnTransport(communicator, exchange, device, communicator.world if redop == "avg" else 1)
    # Not the group of ours: the two would share one queue.
    group = lane_group(None, f"{lane}-torch", backend=name)
    return TorchTransport(group, torch.device("cpu") if name == "gloo" else device, redop)
