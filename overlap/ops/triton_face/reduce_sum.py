"""Rows into one, in order: kernels/reduce_sum.py."""

from collections.abc import Sequence

from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.reduce_sum import reduce_sum_kernel, reduce_sum_norm_kernel
from overlap.ops.triton_face.grad_norm import TILE, finish, partials
from overlap.ops.triton_face.launching import EXACT, on, programs, stream_of
from overlap.ops.triton_face.tables import upload


def reduce_sum(rows: Sequence[Tensor], out: Tensor, scale: float, accumulate: bool, norm: Tensor | None) -> None:
    """See ``overlap.ops.reduce_sum``. With ``norm`` a second, small launch finishes the sum of squares."""
    with on(out.device):
        if norm is not None:
            _with_norm(rows, out, scale, accumulate, norm)
        elif out.numel() > 0:
            table, aligned = _table(rows, out)
            reduce_sum_kernel[(programs(out.numel(), launch.REDUCE_SUM.block),)](
                table, len(rows), rows[0], out, out.numel(), scale, ALIGNED=aligned, ACCUMULATE=accumulate,
                BLOCK=launch.REDUCE_SUM.block, num_warps=launch.REDUCE_SUM.num_warps, **EXACT,
            )  # fmt: skip


def _with_norm(rows: Sequence[Tensor], out: Tensor, scale: float, accumulate: bool, norm: Tensor) -> None:
    tiles = programs(out.numel(), TILE)
    partial = partials(out.device, tiles)
    if tiles > 0:
        table, aligned = _table(rows, out)
        reduce_sum_norm_kernel[(tiles,)](
            table, len(rows), rows[0], out, partial, out.numel(), scale, ALIGNED=aligned, ACCUMULATE=accumulate,
            ROWS=launch.NORM_ROWS, LANES=launch.NORM_LANES, num_warps=launch.NORM_WARPS, **EXACT,
        )  # fmt: skip
    finish(partial, tiles, norm, True)


def _table(rows: Sequence[Tensor], out: Tensor) -> tuple[Tensor, bool]:
    """Return the addresses of ``rows`` on the device, and whether all are multiples of 16."""
    addresses = tuple(row.data_ptr() for row in rows)
    aligned = all(address % 16 == 0 for address in addresses)
    return upload(addresses, out.device, stream_of(out.device)), aligned
