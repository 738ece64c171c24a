"""Rows into one, in order: csrc/cuda/reduce_sum.cu."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from overlap.ops.cuda_face import routes
from overlap.ops.cuda_face.dtypes import NAMES
from overlap.ops.cuda_face.grad_norm import finish, partials
from overlap.ops.cuda_face.sizes import CAPACITY


def reduce_sum(rows: Sequence[Tensor], out: Tensor, scale: float, accumulate: bool, norm: Tensor | None, /) -> None:
    """See ``overlap.ops.reduce_sum``. More than 505 rows take several launches and an fp32 scratch between them."""
    partial = None if norm is None else partials(out)
    if out.numel() > 0:
        _sum(rows, out, scale, accumulate, partial)
    if norm is not None and partial is not None:
        finish(partial, norm, True)


def _sum(rows: Sequence[Tensor], out: Tensor, scale: float, accumulate: bool, partial: Tensor | None) -> None:
    addresses = array("Q", [row.data_ptr() for row in rows])
    last = (len(rows) - 1) // CAPACITY * CAPACITY
    scratch = torch.empty(out.numel() if last else 0, dtype=torch.float32, device=out.device)
    for first in range(0, last, CAPACITY):
        _launch(rows, addresses[first : first + CAPACITY], scratch if first else None, scratch, 1.0, False, None)
    _launch(rows, addresses[last:], scratch if last else None, out, scale, accumulate, partial)


def _launch(
    rows: Sequence[Tensor],
    addresses: "array[int]",
    start: Tensor | None,
    out: Tensor,
    scale: float,
    accumulate: bool,
    partial: Tensor | None,
) -> None:
    device, stream = routes.place_of(out)
    routes.current().reduce_sum(
        f"reduce_sum_{NAMES[rows[0].dtype]}_{NAMES[out.dtype]}", device, stream,
        addresses.buffer_info()[0], len(addresses), _address(start), out.data_ptr(), _address(partial),
        out.numel(), scale, accumulate,
    )  # fmt: skip


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
