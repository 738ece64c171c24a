"""Sum of squares, and whether all of it was finite: csrc/cuda/grad_norm.cu."""

from torch import Tensor

from overlap.ops.cuda_face import routes
from overlap.ops.cuda_face.dtypes import NAMES
from overlap.ops.cuda_face.sizes import TILE
from overlap.ops.triton_face.grad_norm import partials as workspace
from overlap.ops.triton_face.launching import programs


def grad_norm(grad: Tensor, out: Tensor, accumulate: bool, /) -> None:
    """See ``overlap.ops.grad_norm``."""
    partial = partials(grad)
    device, stream = routes.place_of(grad)
    if grad.numel() > 0:
        kernel = f"sum_squares_{NAMES[grad.dtype]}"
        routes.current().sum_squares(kernel, device, stream, grad.data_ptr(), partial.data_ptr(), grad.numel())
    finish(partial, out, accumulate)


def partials(flat: Tensor) -> Tensor:
    """Return room for one fp64 per tile of ``flat``, kept from call to call as Triton's is."""
    tiles = programs(flat.numel(), TILE)
    return workspace(flat.device, tiles)[:tiles]


def finish(partial: Tensor, out: Tensor, accumulate: bool) -> None:
    """Add the tiles' sums into ``out``."""
    device, stream = routes.place_of(out)
    routes.current().finish(device, stream, partial.data_ptr(), out.data_ptr(), partial.numel(), accumulate)
