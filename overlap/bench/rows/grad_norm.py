"""grad_norm against torch's clipping, its total norm, and its vector norm."""

import math
from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor

from overlap import ops
from overlap.bench import memory
from overlap.bench.case import Case, Peer, dtype_name
from overlap.bench.verify import CHUNK, poison

TOLERANCE = 1e-12
"""Relative: the order of the fp64 sum differs between faces, by a few units in the last place."""


def grad_norm(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield one flat gradient."""
    grad = memory.randn(elements, dtype, device)
    out = torch.zeros(2, dtype=torch.float64, device=device)

    def call(face: ModuleType) -> None:
        face.grad_norm(grad, out, False)

    def wrong(face: ModuleType) -> int:
        poison(out)
        call(face)
        return wrong_norm(out, grad)

    yield Case(
        op="grad_norm",
        variant="one flat",
        dtype=dtype_name(dtype),
        elements=elements,
        bytes=grad_norm_bytes(elements, dtype.itemsize),
        bound="read",
        call=call,
        public=lambda: ops.grad_norm(grad, out),
        wrong=wrong,
        results=lambda: [out[0].sqrt()],
        peers=_peers(grad),
    )


def grad_norm_bytes(elements: int, grad_bytes: int) -> int:
    """The gradient, read once."""
    return elements * grad_bytes


def wrong_norm(out: Tensor, values: Tensor) -> int:
    """Count which of sum of squares and flag are wrong; the truth is a plain float64 sum."""
    starts = range(0, values.numel(), CHUNK)
    want = math.fsum(float(values[start : start + CHUNK].cpu().double().square().sum()) for start in starts)
    total, flag = out.tolist()
    return int(not abs(total - want) <= TOLERANCE * want) + int(flag != 0)


def _peers(grad: Tensor) -> tuple[Peer, ...]:
    """The first scales the gradient, too, whatever the norm: it reads it twice and writes it."""
    parameter = torch.nn.Parameter(memory.empty_like(grad))
    parameter.grad = memory.copy(grad)
    norms = dict.fromkeys(("clip", "total", "vector"), torch.tensor(math.nan))

    def clip() -> None:
        norms["clip"] = torch.nn.utils.clip_grad_norm_([parameter], 1e30)

    def total() -> None:
        norms["total"] = torch.nn.utils.get_total_norm([grad])

    def vector() -> None:
        norms["vector"] = torch.linalg.vector_norm(grad, dtype=torch.float32)

    return (
        Peer("torch clip_grad_norm_", clip, 3 * grad.nbytes, lambda: [norms["clip"]]),
        Peer("torch get_total_norm", total, grad.nbytes, lambda: [norms["total"]]),
        Peer("torch vector_norm in fp32", vector, grad.nbytes, lambda: [norms["vector"]]),
    )
