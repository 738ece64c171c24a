"""Updates by whole matrices: rows to owners, Newton-Schulz there, rows back.

    every rank    momentum of its rows, in the dtype to iterate in  --all_gather-->  whole matrices of a round
    owner         whole matrix  --newton_schulz-->  its place in the owner's row of results
    every rank    rows of results  --all_gather-->  its rows of every matrix  -->  weights

What is whole on a rank already (one rank, a stack that is split between its matrices) is not sent at all, what is
replicated is not gathered. Owners work on the same bits in the same shape whatever the number of ranks.

Both exchanges give all ranks everything, since the communicators have no all-to-all: each sends (world - 1) / world of
the elements, world times of what owners and rows need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.optim.newton_schulz import newton_schulz
from overlap.optim.owners import Dealt, Round, deal, row_width
from overlap.optim.verdict import Verdict
from overlap.optim.whole import Matrix
from overlap.shard.param import rows_in
from overlap.shard.piece import Piece

ROUND_NUMEL = 2**24
"""Elements of a round, unless one matrix per rank has more: bounds the memory of both exchanges."""

KIND = "muon"
"""Of the bytes that are sent."""


def updates_of(
    matrices: Sequence[Matrix], comm: Communicator, verdict: Verdict, dtype: torch.dtype
) -> list[AloneUpdate | RoundUpdate]:
    """The updates of a step, in the order in which all ranks run them.

    Args:
        matrices: all that have a gradient, the same on all ranks.
        comm: over the ranks that share them.
        verdict: scale and skip.
        dtype: to iterate in, and to send.
    """
    alone = [matrix for matrix in matrices if comm.world == 1 or _is_here(matrix)]
    shared = [matrix for matrix in matrices if comm.world > 1 and not _is_here(matrix)]
    rounds = deal([matrix.shape for matrix in shared], comm.world, ROUND_NUMEL)
    return [
        *(AloneUpdate(matrix, verdict, dtype) for matrix in alone),
        *(RoundUpdate([shared[each.index] for each in dealt], dealt, comm, verdict, dtype) for dealt in rounds),
    ]


def _is_here(matrix: Matrix) -> bool:
    """Whether each rank has whole matrices of its own."""
    return matrix.flat.layout.world > 1 and not matrix.cut


@dataclass(frozen=True, slots=True)
class AloneUpdate:
    """Of a matrix, or matrices of a stack, that this rank needs nobody for."""

    matrix: Matrix
    verdict: Verdict
    dtype: torch.dtype

    @property
    def matrices(self) -> Sequence[Matrix]:
        """The one."""
        return (self.matrix,)

    def __call__(self) -> None:
        """Run it."""
        direction = self.matrix.direction(self.verdict.scale, self.verdict.skip)
        update = orthogonalise(self.matrix, self.matrix.rows_in(direction), self.dtype)
        self.matrix.apply(update, self.verdict.skip)


@dataclass(frozen=True, slots=True)
class RoundUpdate:
    """Of matrices that are exchanged together. A collective.

    Attributes:
        matrices: in the order of ``dealt``.
        dealt: who works on which.
        comm: over the ranks that share them.
        verdict: scale and skip.
        dtype: to iterate in, and to send.
    """

    matrices: Sequence[Matrix]
    dealt: Round
    comm: Communicator
    verdict: Verdict
    dtype: torch.dtype

    def __call__(self) -> None:
        """Run it."""
        results = self._results(self._gathered())
        for matrix, each in zip(self.matrices, self.dealt, strict=True):
            whole = _result(results, each).view(matrix.layout.shape)
            here = rows_in(whole, matrix.layout, matrix.flat.rank) if matrix.cut else whole
            matrix.apply(here, self.verdict.skip)

    def _gathered(self) -> list[Tensor]:
        """Directions of whole matrices, as they are stored."""
        directions = [matrix.direction(self.verdict.scale, self.verdict.skip) for matrix in self.matrices]
        fulls = [
            _room(direction, self.comm, self.dtype) if matrix.cut else direction
            for matrix, direction in zip(self.matrices, directions, strict=True)
        ]
        cut = [full for matrix, full in zip(self.matrices, fulls, strict=True) if matrix.cut]
        if cut:
            self.comm.all_gather([Piece(full.chunk(self.comm.world)[self.comm.rank], full) for full in cut], KIND)
        return fulls

    def _results(self, gathered: Sequence[Tensor]) -> Tensor:
        """Orthogonalise what is this rank's to do; ``[world, width]`` of what all have."""
        width = row_width(self.dealt)
        results = torch.zeros(self.comm.world, width, dtype=self.dtype, device=gathered[0].device)
        for matrix, each, stored in zip(self.matrices, self.dealt, gathered, strict=True):
            if each.owner == self.comm.rank:
                whole = orthogonalise(matrix, matrix.whole_in(stored), self.dtype)
                _result(results, each).copy_(whole.reshape(-1))
        self.comm.all_gather([Piece(results[self.comm.rank], results.view(-1))], KIND)
        return results


def _room(direction: Tensor, comm: Communicator, dtype: torch.dtype) -> Tensor:
    """Where the rows of all ranks are to lie, with this rank's in their place."""
    full = direction.new_empty(comm.world * direction.numel(), dtype=dtype)
    full.chunk(comm.world)[comm.rank].copy_(direction)
    return full


def _result(results: Tensor, each: Dealt) -> Tensor:
    """One matrix in ``[world, width]``."""
    return results[each.owner].narrow(0, each.offset, each.numel)


def orthogonalise(matrix: Matrix, whole: Tensor, dtype: torch.dtype) -> Tensor:
    """Newton-Schulz as a matrix's group has it.

    Args:
        matrix: whose.
        whole: the parameter, or of a stack some, in its own dimensions.
        dtype: to iterate in.

    Returns:
        The same shape, in ``dtype``.
    """
    group = matrix.group
    seen = whole.contiguous().view(-1, *matrix.shape[1:])  # the same strides, and so bits, however it was stored
    result = newton_schulz(
        seen,
        dtype,
        coefficients=tuple(group["ns_coefficients"]),
        steps=int(group["ns_steps"]),
        eps=float(group["eps"]),
    )
    return result.reshape(whole.shape)
