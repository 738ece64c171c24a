"""Collectives on gloo, made of point-to-point exchanges and our own sum.

Why not gloo's: its reduce-scatter is an all-reduce and a slice (twice the bytes), its all-gather reaches
two thirds of a link that pairs fill, and its sums depend on a value's position in the buffer. Here the rows
of all ranks are added in rank order in fp32, so results do not depend on how gradients were bucketed.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.distributed import ProcessGroup

from overlap import ops
from overlap.comm.collective import check_bucket, check_contiguous, check_pieces
from overlap.comm.exchange import Exchange, Transfer
from overlap.comm.message import Message
from overlap.comm.scratch import Scratch
from overlap.comm.volume import WireCounter
from overlap.shard.piece import Piece


class PairwiseCommunicator:
    """The `Communicator` for CPU tensors. A group of one rank never touches the process group.

    Args:
        group: a gloo group that nothing else uses while this communicator is in a call.
        lane: name of the lane it serves.
        counter: one that it shares with others; None makes its own.
    """

    def __init__(self, group: ProcessGroup, lane: str = "", counter: WireCounter | None = None) -> None:
        self.rank = group.rank()
        self.world = group.size()
        self.lane = lane
        self.counter = counter or WireCounter(measured=True)
        self._exchange = Exchange(group, lane)
        self._scratch = Scratch()

    @property
    def scratch_bytes(self) -> int:
        """Receive rows of the largest reduction so far: (world - 1) / world of its bucket; memory shared on a host."""
        return self._scratch.nbytes + self._exchange.nbytes

    def all_gather(self, pieces: Sequence[Piece], kind: str) -> None:
        """See `Communicator.all_gather`. Rows arrive in `full`: nothing is staged or copied out."""
        check_pieces(pieces, self.world)
        receives: list[Message] = []
        sends: list[Message] = []
        for index, piece in enumerate(p for p in pieces if p.local.numel()):
            rows = piece.full.view(self.world, -1)
            if rows[self.rank].data_ptr() != piece.local.data_ptr():
                rows[self.rank].copy_(piece.local)
            receives += [Message(rows[peer], peer, index) for peer in self._peers()]
            sends += [Message(piece.local, peer, index) for peer in self._peers()]
        with self._exchange.call(f"all_gather ({kind})", sum(piece.full.nbytes for piece in pieces)) as transfer:
            transfer.move(receives, sends)
        self.counter.add(kind, transfer.sent)

    def reduce_scatter(self, bucket: Tensor, out: Tensor, kind: str, *, accumulate: bool = False) -> None:
        """See `Communicator.reduce_scatter`."""
        check_bucket(bucket, out, self.world)
        with self._exchange.call(f"reduce_scatter ({kind})", bucket.nbytes) as transfer:
            self._reduce(transfer, list(bucket.unbind(0)), out, accumulate)
        self.counter.add(kind, transfer.sent)

    def all_reduce(self, flat: Tensor, kind: str) -> None:
        """See `Communicator.all_reduce`. Each rank sums one chunk; chunks differ by at most one element."""
        check_contiguous(flat, "buffer of the all-reduce")
        chunks = list(flat.tensor_split(self.world))
        mine = chunks[self.rank]
        receives = [Message(chunks[peer], peer) for peer in self._peers()]
        sends = [Message(mine, peer) for peer in self._peers()]
        with self._exchange.call(f"all_reduce ({kind})", flat.nbytes) as transfer:
            self._reduce(transfer, chunks, mine, accumulate=False)
            transfer.move(receives, sends)
        self.counter.add(kind, transfer.sent)

    def broadcast(self, tensor: Tensor, src: int, kind: str) -> None:
        """See `Communicator.broadcast`. The source sends to every rank: meant for weights, once."""
        check_contiguous(tensor, "tensor to broadcast")
        is_source = self.rank == src
        sends = [Message(tensor, peer) for peer in self._peers()] if is_source else []
        receives = [] if is_source else [Message(tensor, src)]
        with self._exchange.call(f"broadcast ({kind})", tensor.nbytes) as transfer:
            transfer.move(receives, sends)
        self.counter.add(kind, transfer.sent)

    def _reduce(self, transfer: Transfer, rows: list[Tensor], out: Tensor, accumulate: bool) -> None:
        """Send every other rank its row, sum what arrives for this one into `out`."""
        mine = rows[self.rank]
        arrived = self._scratch.take((self.world - 1) * mine.numel(), like=mine)
        terms = list(arrived.view(self.world - 1, -1).unbind(0)) if arrived.numel() else []
        receives = [Message(term, peer) for term, peer in zip(terms, sorted(self._peers()), strict=False)]
        transfer.move(receives, [Message(rows[peer], peer) for peer in self._peers()])
        if mine.numel():
            terms.insert(self.rank, mine)
            ops.reduce_sum(terms, out, scale=1.0, accumulate=accumulate)

    def _peers(self) -> Iterator[int]:
        """The other ranks, next one first, so that ranks do not all start with the same receiver."""
        return ((self.rank + step) % self.world for step in range(1, self.world))
