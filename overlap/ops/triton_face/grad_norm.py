"""Sum of squares and non-finite flag: kernels/grad_norm.py."""

import torch
from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.grad_norm import finish_kernel, sum_squares_kernel
from overlap.ops.triton_face.launching import EXACT, on, programs, stream_of

TILE = launch.NORM_ROWS * launch.NORM_LANES
"""Elements of one partial sum."""

_partials: dict[tuple[torch.device, int], Tensor] = {}


def grad_norm(grad: Tensor, out: Tensor, accumulate: bool) -> None:
    """See ``overlap.ops.grad_norm``."""
    size = grad.numel()
    tiles = programs(size, TILE)
    with on(grad.device):
        partial = partials(grad.device, tiles)
        if tiles > 0:
            sum_squares_kernel[(tiles,)](
                grad, partial, size, ROWS=launch.NORM_ROWS, LANES=launch.NORM_LANES,
                num_warps=launch.NORM_WARPS, **EXACT,
            )  # fmt: skip
        finish(partial, tiles, out, accumulate)


def finish(partial: Tensor, tiles: int, out: Tensor, accumulate: bool) -> None:
    """Add ``partial[:tiles]`` (fp64) into ``out``; launches on the current device."""
    finish_kernel[(1,)](
        partial, out, tiles, ACCUMULATE=accumulate, LANES=launch.FINISH_LANES,
        num_warps=launch.NORM_WARPS, **EXACT,
    )  # fmt: skip


def partials(device: torch.device, tiles: int) -> Tensor:
    """Return the fp64 workspace of the current stream, of at least ``tiles`` elements; it only grows.

    Launches on one stream run in order, so each has read its partial sums before the next writes.
    """
    key = (device, stream_of(device))
    held = _partials.get(key)
    if held is None or held.numel() < tiles:
        held = torch.empty(max(1024, 1 << (tiles - 1).bit_length()), dtype=torch.float64, device=device)
        _partials[key] = held
    return held
