"""Collectives by torch's own process group: NCCL on CUDA; on gloo to run the same contract there.

What happens when ranks are out of step is the backend's matter. NCCL matches calls by their order alone: calls of equal
size take each other's data, others hang until torch's watchdog ends the process (its flight recorder then has the
calls of every rank). Gloo would end it at once on a size it does not expect, or fill a tensor in part. So on gloo each
collective comes behind an exchange of one byte that only equal calls complete, and ranks out of step get the errors
that `PairwiseCommunicator` gives.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from overlap import _compat
from overlap.comm.collective import check_bucket, check_contiguous, check_pieces
from overlap.comm.desync import broken
from overlap.comm.exchange import Exchange, open_log
from overlap.comm.message import Message
from overlap.comm.scratch import Scratch
from overlap.comm.volume import Collective, WireCounter, wire_bytes
from overlap.shard.piece import Piece


class ProcessGroupCommunicator:
    """The `Communicator` over a backend that reduces by itself.

    The order of a sum and its precision on the way are the backend's: a bf16 bucket is rounded at every hop,
    and bits may depend on where a value lies in the bucket. Bytes are counted by formula, without what gloo needs
    to be safe.

    Args:
        group: a group that nothing else uses, so that its queue is this lane's order.
        lane: name of the lane it serves.
        counter: one that it shares with others; None makes its own.
    """

    def __init__(self, group: ProcessGroup, lane: str = "", counter: WireCounter | None = None) -> None:
        self.rank = group.rank()
        self.world = group.size()
        self.lane = lane
        self.counter = counter or WireCounter(measured=False)
        self._group = group
        self._exchange = Exchange(group, lane) if dist.get_backend(group) == "gloo" else None
        self._log = self._exchange.log if self._exchange is not None else open_log(group, lane)
        self._scratch = Scratch()

    @property
    def scratch_bytes(self) -> int:
        """Rows staged because they are accumulated or change dtype: the largest so far."""
        return self._scratch.nbytes

    def all_gather(self, pieces: Sequence[Piece], kind: str) -> None:
        """See `Communicator.all_gather`."""
        check_pieces(pieces, self.world)
        fulls = [p.full for p in pieces if p.full.numel()]
        locals_ = [p.local for p in pieces if p.full.numel()]
        with self._call("all_gather", kind, fulls):
            if self.world == 1:
                for full, local in zip(fulls, locals_, strict=True):
                    full.copy_(local)
            elif fulls:
                _compat.all_gather_coalesced(self._group, fulls, locals_)

    def reduce_scatter(self, bucket: Tensor, out: Tensor, kind: str, *, accumulate: bool = False) -> None:
        """See `Communicator.reduce_scatter`; the sum has the bucket's dtype before it meets `out`."""
        check_bucket(bucket, out, self.world)
        staged = accumulate or out.dtype != bucket.dtype
        target = self._scratch.take(out.numel(), like=bucket) if staged else out
        with self._call("reduce_scatter", kind, [bucket]):
            self._reduce_into(bucket, target)
            if accumulate:
                out.add_(target)
            elif staged:
                out.copy_(target)

    def all_reduce(self, flat: Tensor, kind: str) -> None:
        """See `Communicator.all_reduce`."""
        check_contiguous(flat, "buffer of the all-reduce")
        with self._call("all_reduce", kind, [flat]):
            if self.world > 1 and flat.numel():
                dist.all_reduce(flat, group=self._group)

    def broadcast(self, tensor: Tensor, src: int, kind: str) -> None:
        """See `Communicator.broadcast`."""
        check_contiguous(tensor, "tensor to broadcast")
        with self._call("broadcast", kind, [tensor]):
            if self.world > 1 and tensor.numel():
                dist.broadcast(tensor, group_src=src, group=self._group)

    def _reduce_into(self, bucket: Tensor, target: Tensor) -> None:
        if self.world == 1:
            target.copy_(bucket[0])
        elif bucket.numel():
            _compat.reduce_scatter(self._group, target, bucket.view(-1))

    @contextmanager
    def _call(self, op: Collective, kind: str, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Number and count the call, and translate the backend's errors."""
        nbytes = sum(t.nbytes for t in tensors)
        with self._meet(f"{op} ({kind})", nbytes):
            try:
                yield
            except RuntimeError as error:
                others = [r for r in dist.get_process_group_ranks(self._group) if r != dist.get_rank()]
                raise broken(self._log, others, error) from error
        self.counter.add(kind, wire_bytes(op, nbytes, self.world))

    @contextmanager
    def _meet(self, op: str, nbytes: int) -> Iterator[None]:
        """On gloo, make sure that all ranks are in the same call, with the same bytes."""
        if self._exchange is None:
            with self._log.call(op, nbytes):
                yield
            return
        with self._exchange.call(op, nbytes) as transfer:
            tokens, peers = torch.zeros(self.world, 1, dtype=torch.uint8), set(range(self.world)) - {self.rank}
            sends = [Message(tokens[self.rank], peer) for peer in peers]
            transfer.move([Message(tokens[peer], peer) for peer in peers], sends)
            yield
