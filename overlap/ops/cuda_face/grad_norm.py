"""Sum of squares, and whether all of it was finite: csrc/cuda/grad_norm.cu."""

import torch
from torch import Tensor

from overlap.ops.cuda_face import routes
from overlap.ops.cuda_face.dtypes import NAMES
from overlap.ops.cuda_face.sizes import TILE


def grad_norm(grad: Tensor, out: Tensor, accumulate: bool, /) -> None:
    """See ``overlap.ops.grad_norm``."""
    partial = partials(grad)
    device, stream = routes.place_of(grad)
    if grad.numel() > 0:
        kernel = f"sum_squares_{NAMES[grad.dtype]}"
        routes.current().sum_squares(kernel, device, stream, grad.data_ptr(), partial.data_ptr(), grad.numel())
    finish(partial, out, accumulate)


def partials(flat: Tensor) -> Tensor:
    """Return room for one fp64 per tile of ``flat``."""
    return torch.empty(-(-flat.numel() // TILE), dtype=torch.float64, device=flat.device)


def finish(partial: Tensor, out: Tensor, accumulate: bool) -> None:
    """Add the tiles' sums into ``out``."""
    device, stream = routes.place_of(out)
    routes.current().finish(device, stream, partial.data_ptr(), out.data_ptr(), partial.numel(), accumulate)
