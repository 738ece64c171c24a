"""Collectives by torch's own process group: NCCL on CUDA; on gloo to run the same contract there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from overlap import _compat
from overlap.comm.collective import check_bucket, check_contiguous, check_pieces
from overlap.comm.scratch import Scratch
from overlap.comm.volume import Collective, WireCounter, wire_bytes
from overlap.errors import DesyncError, message
from overlap.shard.piece import Piece


class ProcessGroupCommunicator:
    """The `Communicator` over a backend that reduces by itself.

    The order of a sum and its precision on the way are the backend's: a bf16 bucket is rounded at every hop,
    and bits may depend on where a value lies in the bucket. Bytes are counted by formula.

    Args:
        group: a group that nothing else uses, so that its queue is this lane's order.
        lane: name of the lane it serves.
    """

    def __init__(self, group: ProcessGroup, lane: str = "") -> None:
        self.rank = group.rank()
        self.world = group.size()
        self.lane = lane
        self.counter = WireCounter(measured=False)
        self._group = group
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
        """Count the call, and translate the backend's errors: only its text can say which peer failed."""
        try:
            yield
        except RuntimeError as error:
            subject = f"{op} ({kind}) on lane '{self.lane}', as rank {dist.get_rank()} sees it,"
            cure = "look at the logs of the other ranks for the first error, or for another collective"
            raise DesyncError(message(subject, "complete on all ranks", str(error), cure)) from error
        self.counter.add(kind, wire_bytes(op, sum(t.nbytes for t in tensors), self.world))
