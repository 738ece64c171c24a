"""reduce_sum against a stack and sum, and against a chain of additions into an fp32 accumulator."""

from collections.abc import Iterator
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from overlap import ops
from overlap.bench import memory
from overlap.bench.case import Case, Peer, dtype_name
from overlap.bench.rows.grad_norm import wrong_norm
from overlap.bench.timing import Run
from overlap.bench.verify import Buffers, wrong_values
from overlap.ops import reference

ROWS = 4
SCALE = 1.0 / ROWS


def reduce_sum(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield four rows averaged into their dtype and into fp32, and into fp32 with the norm of the result."""
    for out_dtype in dict.fromkeys((dtype, torch.float32)):
        yield _case(elements, dtype, out_dtype, device, with_norm=False)
    yield _case(elements, dtype, torch.float32, device, with_norm=True)


def reduce_sum_bytes(elements: int, row_bytes: int, out_bytes: int) -> int:
    """Each row read once, the output written once; the norm is taken on the way."""
    return elements * (ROWS * row_bytes + out_bytes)


def _case(elements: int, dtype: torch.dtype, out_dtype: torch.dtype, device: torch.device, *, with_norm: bool) -> Case:
    rows = [memory.randn(elements, dtype, device) for _ in range(ROWS)]
    out = memory.empty(elements, out_dtype, device)
    norm = torch.zeros(2, dtype=torch.float64, device=device) if with_norm else None

    def apply(face: ModuleType, buffers: Buffers, norm: Tensor | None) -> None:
        face.reduce_sum(buffers[:-1], buffers[-1], SCALE, False, norm)

    def wrong(face: ModuleType) -> int:
        if norm is not None:
            norm.zero_()
        buffers = [*rows, out]
        run = partial(apply, face, buffers, norm)
        count = wrong_values(buffers, [out], run, lambda part, _: apply(reference, part, None))
        return count if norm is None else count + wrong_norm(norm, out)

    return Case(
        op="reduce_sum",
        variant=f"mean of {ROWS} rows" + (", norm" if with_norm else ""),
        dtype=f"{dtype_name(dtype)} -> {dtype_name(out_dtype)}",
        elements=elements,
        bytes=reduce_sum_bytes(elements, dtype.itemsize, out_dtype.itemsize),
        bound="triad",
        call=lambda face: apply(face, [*rows, out], norm),
        public=lambda: ops.reduce_sum(rows, out, scale=SCALE, norm=norm),
        wrong=wrong,
        results=lambda: [out],
        peers=(_stack(rows, out, norm), _chain(rows, out, norm)),
    )


def _stack(rows: list[Tensor], like: Tensor, norm: Tensor | None) -> Peer:
    out = memory.empty_like(like)

    def run() -> None:
        torch.sum(torch.stack(rows), 0, dtype=out.dtype, out=out)
        out.mul_(SCALE)

    stacked = 2 * ROWS * rows[0].nbytes
    return _with_norm(Peer("torch.stack, sum", run, stacked + ROWS * rows[0].nbytes + 3 * out.nbytes), out, norm)


def _chain(rows: list[Tensor], like: Tensor, norm: Tensor | None) -> Peer:
    """As exact as ours: the sum is kept in fp32 and rounded once."""
    total = memory.empty_like(like, torch.float32)
    out = total if like.dtype == torch.float32 else memory.empty_like(like)

    def run() -> None:
        total.copy_(rows[0])
        for row in rows[1:]:
            total.add_(row)
        total.mul_(SCALE)
        if out is not total:
            out.copy_(total)

    moved = ROWS * rows[0].nbytes + (2 * ROWS + 1) * total.nbytes
    moved += 0 if out is total else total.nbytes + out.nbytes
    return _with_norm(Peer("torch copy_, add_, mul_", run, moved), out, norm)


def _with_norm(peer: Peer, out: Tensor, norm: Tensor | None) -> Peer:
    name, run, moved = peer.name, peer.run, peer.bytes
    assert run is not None
    if norm is not None:
        name, run, moved = f"{name}, vector_norm", _then_norm(run, out), moved + out.nbytes
    return Peer(name, run, moved, lambda: [out])


def _then_norm(run: Run, out: Tensor) -> Run:
    def both() -> None:
        run()
        torch.linalg.vector_norm(out)

    return both
