"""Collectives over all ranks of a mesh, of which rows are near: what has crossed between rows once is kept in each.

Ranks of a mesh of R rows (nodes) of S ranks; N = R S chunks per parameter, chunk r S + s being that of rank (r, s):

    all_gather       rows     chunk (r, s)  ->  near[r'] = chunk (r', s) of all r'     once, until ``forget``
                     in a row near[r']      ->  full[r' S : (r' + 1) S] for each r'    every time, nothing is staged
    reduce_scatter   in a row rows r' S ... of the bucket -> one partial sum per r'
                     rows     partial sums of one (r', s) -> its rank

Of the (N - 1) / N of all elements that a rank sends for a gather, (R - 1) / N cross between rows, and only the first
time; of those for a reduction (R - 1) / N, too. Compare the secondary partition of ZeRO++ (Wang et al. 2023, 3.2).
"""

from collections.abc import Sequence

from torch import Tensor

from overlap.comm.collective import Communicator, check_bucket, check_pieces
from overlap.comm.scratch import Scratch
from overlap.comm.volume import WireCounter
from overlap.shard.piece import Piece


class TwoLevelCommunicator:
    """A `Communicator` over a whole mesh, made of those of its dimensions.

    Args:
        row: over the ranks of this one's row.
        column: over the ranks with this one's place in their rows.
        everyone: over all of them, in the order of the mesh; for what is small. All three have one counter.
    """

    def __init__(self, row: Communicator, column: Communicator, everyone: Communicator) -> None:
        self._row, self._column, self._everyone = row, column, everyone
        self._near: dict[int, Tensor] = {}  # address of a chunk -> [rows, chunk]
        self._fresh: set[int] = set()
        self._scratch = Scratch()

    @property
    def rank(self) -> int:
        """Place in the mesh, row by row."""
        return self._everyone.rank

    @property
    def world(self) -> int:
        """Ranks of the mesh."""
        return self._everyone.world

    @property
    def lane(self) -> str:
        """Name of the lane that this communicator serves."""
        return self._everyone.lane

    @property
    def counter(self) -> WireCounter:
        """Bytes this rank has sent, by kind; what gathers have sent between rows is of kind "refresh"."""
        return self._everyone.counter

    @property
    def scratch_bytes(self) -> int:
        """Receive buffers, partial sums, and what is kept of other rows."""
        inner = sum(comm.scratch_bytes for comm in (self._row, self._column, self._everyone))
        return inner + self._scratch.nbytes + sum(near.nbytes for near in self._near.values())

    def forget(self) -> None:
        """The chunks have changed: the next gathers cross between rows again. Not while one is under way."""
        self._fresh.clear()

    def all_gather(self, pieces: Sequence[Piece], kind: str) -> None:
        """See `Communicator.all_gather`."""
        check_pieces(pieces, self.world)
        stale = [piece for piece in pieces if piece.local.data_ptr() not in self._fresh]
        if stale:
            self._column.all_gather([Piece(piece.local, self._near_of(piece).view(-1)) for piece in stale], "refresh")
            self._fresh.update(piece.local.data_ptr() for piece in stale)
        self._row.all_gather([part for piece in pieces for part in self._parts(piece)], kind)

    def reduce_scatter(self, bucket: Tensor, out: Tensor, kind: str, *, accumulate: bool = False) -> None:
        """See `Communicator.reduce_scatter`; sums are in rank order within rows, then in the order of rows."""
        check_bucket(bucket, out, self.world)
        rows = self._column.world
        partial = self._scratch.take(rows * out.numel(), like=bucket).view(rows, -1)
        for part, into in zip(bucket.view(rows, self._row.world, -1), partial, strict=True):
            self._row.reduce_scatter(part, into, kind)
        self._column.reduce_scatter(partial, out, kind, accumulate=accumulate)

    def all_reduce(self, flat: Tensor, kind: str) -> None:
        """See `Communicator.all_reduce`."""
        self._everyone.all_reduce(flat, kind)

    def broadcast(self, tensor: Tensor, src: int, kind: str) -> None:
        """See `Communicator.broadcast`."""
        self._everyone.broadcast(tensor, src, kind)

    def _near_of(self, piece: Piece) -> Tensor:
        key = piece.local.data_ptr()
        if key not in self._near:
            self._near[key] = piece.local.new_empty(self._column.world, piece.local.numel())
        return self._near[key]

    def _parts(self, piece: Piece) -> list[Piece]:
        rows = piece.full.view(self._column.world, -1)
        return [Piece(chunk, full) for chunk, full in zip(self._near_of(piece), rows, strict=True)]
