"""The protocol of collectives, and what every implementation checks before it calls.

All methods run inside a lane. When one returns, its result is ready *in lane order*: complete on CPU,
enqueued on the current stream on CUDA. A communicator belongs to one lane: one thread at a time uses it.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from overlap.comm.volume import WireCounter
from overlap.errors import ConfigError, message
from overlap.shard.piece import Piece


class Communicator(Protocol):
    """Collectives over the ranks of one group, in one order on all of them.

    `kind` names what a call is for ("gather", "reduce", ...): the key of its bytes, and part of errors. Which unit or
    bucket it is for is said around it (`overlap.comm.label`).
    Every method raises `ConfigError` for tensors of the wrong shape or dtype, before anything is sent, and
    `DesyncError` when a rank does not answer within the group's timeout.
    """

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""

    @property
    def world(self) -> int:
        """Number of ranks in the group."""

    @property
    def lane(self) -> str:
        """Name of the lane that this communicator serves."""

    @property
    def counter(self) -> WireCounter:
        """Bytes this rank has sent, by kind."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the persistent receive buffer: grown when needed, never freed."""

    def all_gather(self, pieces: Sequence[Piece], kind: str) -> None:
        """Fill every piece's `full` with the `local` of all ranks: one collective for a whole unit."""

    def reduce_scatter(self, bucket: Tensor, out: Tensor, kind: str, *, accumulate: bool = False) -> None:
        """Sum row `rank` of every rank's bucket, in rank order and in fp32, into `out` (or onto it).

        Args:
            bucket: [world, S], contiguous.
            out: [S]; its dtype may differ from the bucket's; may be `bucket[rank]`.
            kind: key of the byte count.
            accumulate: add to what `out` holds.
        """

    def all_reduce(self, flat: Tensor, kind: str) -> None:
        """Sum `flat` [n] over the ranks in place, for any n; all ranks end with the same bits."""

    def broadcast(self, tensor: Tensor, src: int, kind: str) -> None:
        """Copy the contiguous `tensor` of group rank `src` to all ranks."""


def check_pieces(pieces: Sequence[Piece], world: int) -> None:
    """Refuse pieces whose `full` is not `world` times their `local`."""
    for i, piece in enumerate(pieces):
        local, full = piece.local, piece.full
        if full.numel() != world * local.numel() or full.dtype != local.dtype:
            rule = f"hold {world} chunks of its local tensor ({local.numel()} x {local.dtype})"
            raise ConfigError(message(f"full tensor of piece {i}", rule, _shape(full), "allocate it padded"))
        check_contiguous(local, f"local tensor of piece {i}")
        check_contiguous(full, f"full tensor of piece {i}")


def check_bucket(bucket: Tensor, out: Tensor, world: int) -> None:
    """Refuse a bucket that is not [world, S] for an `out` of [S]."""
    if tuple(bucket.shape) != (world, out.numel()):
        rule = f"be [{world}, {out.numel()}], one row of the output's size per rank"
        raise ConfigError(message("bucket", rule, _shape(bucket), "lay it out rank-major"))
    check_contiguous(bucket, "bucket")
    check_contiguous(out, "output of the reduce-scatter")


def check_contiguous(tensor: Tensor, what: str) -> None:
    """Refuse a tensor whose elements do not lie back to back."""
    if not tensor.is_contiguous():
        raise ConfigError(message(what, "be contiguous", f"strides {tensor.stride()}", "pass a flat buffer"))


def _shape(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype}"
