"""Collectives that move nothing: what is left of a step is the host's own work.

The fake process group of torch would not do: it copies in a loop over the ranks (about 600 us for one gather at 1024 of
them), as much as a unit costs anybody. Reductions leave zeros, so that no step meets a NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.comm.volume import WireCounter
from overlap.shard.piece import Piece

PARAMETERS = "gather"
"""The kind of call whose result nobody here reads; all others carry facts and norms."""


class IdleCommunicator:
    """A `Communicator` whose other ranks have just what this one has, where that is read."""

    def __init__(self, lane: str, rank: int, world: int) -> None:
        self.lane, self.rank, self.world = lane, rank, world
        self.counter = WireCounter(measured=False)
        self.scratch_bytes = 0

    def all_gather(self, pieces: Sequence[Piece], kind: str) -> None:
        """Echo what is read; parameters stay what they were."""
        if kind != PARAMETERS:
            for piece in pieces:
                piece.full.view(self.world, -1).copy_(piece.local)

    def reduce_scatter(self, bucket: Tensor, out: Tensor, kind: str, *, accumulate: bool = False) -> None:
        """Leave zeros."""
        out.zero_()

    def all_reduce(self, flat: Tensor, kind: str) -> None:
        """Leave this rank's own."""

    def broadcast(self, tensor: Tensor, src: int, kind: str) -> None:
        """Leave this rank's own."""


def idle_transport(lane: str, ranks: Sequence[int], usual: Callable[[], Communicator]) -> Communicator:
    """Open an idle communicator in place of any other."""
    return IdleCommunicator(lane, list(ranks).index(dist.get_rank()), len(ranks))


class IdleGather:
    """FSDP2's face of the same: ``set_custom_all_gather``."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """As FSDP2's own."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Move nothing."""


class IdleReduction(IdleGather):
    """And ``set_custom_reduce_scatter``."""

    def __call__(  # type: ignore[override]
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Leave zeros."""
        output_tensor.zero_()
