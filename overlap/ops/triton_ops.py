"""The Triton face, for CUDA tensors (and, under ``TRITON_INTERPRET=1``, for the tests on CPU).

Launches are asynchronous, never synchronise, and compile once per combination of dtypes and flags.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch
from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.adamw import adamw_kernel
from overlap.kernels.grad_norm import finish_kernel, sum_squares_kernel
from overlap.kernels.pack import pack_kernel
from overlap.kernels.reduce_sum import reduce_sum_kernel
from overlap.ops.coefficients import AdamWCoefficients
from overlap.ops.slots import PackSlot, regions

_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The dtype codes of kernels/pack.py."""

_EXACT = {"enable_fp_fusion": False}
"""Multiply and add round separately, as on the CPU: the same bits from every face."""


def pack(
    grads: Sequence[Tensor | None],
    bucket: Tensor,
    slots: tuple[PackSlot, ...],
    *,
    scale: float,
    accumulate: bool,
) -> None:
    """See ``overlap.ops.pack``."""
    world, width = bucket.shape
    if bucket.numel() == 0:
        return
    block = launch.PACK.block
    sources: list[int] = []
    for region in regions(slots, world, width):
        grad = grads[region.grad] if region.grad >= 0 else None
        sources.extend((0, 0) if grad is None else (grad.data_ptr(), _CODES[grad.dtype]))
    with _on(bucket.device):
        region_table, block_table = _layout(slots, world, width, block, bucket.device, _stream(bucket.device))
        source_table = _upload(tuple(sources), bucket.device, _stream(bucket.device))
        pack_kernel[(block_table.numel() // 2, world)](
            source_table, region_table, block_table, bucket, width, scale,
            ACCUMULATE=accumulate, BLOCK=block, num_warps=launch.PACK.num_warps, **_EXACT,
        )  # fmt: skip


@lru_cache(maxsize=1024)
def _layout(
    slots: tuple[PackSlot, ...], world: int, width: int, block: int, device: torch.device, stream: int
) -> tuple[Tensor, Tensor]:
    """Return the ``regions`` and ``blocks`` tables of kernels/pack.py; sent once per bucket layout."""
    region_words: list[int] = []
    block_words: list[int] = []
    for index, region in enumerate(regions(slots, world, width)):
        region_words.extend((region.offset, region.end, region.chunk, region.numel))
        for begin in range(0, region.end - region.offset, block):
            block_words.extend((index, begin))
    return _upload(tuple(region_words), device, stream), _upload(tuple(block_words), device, stream)


def adamw(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: AdamWCoefficients,
    *,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
) -> None:
    """See ``overlap.ops.adamw``."""
    size = master.numel()
    if size == 0:
        return
    with _on(master.device):
        adamw_kernel[(_programs(size, launch.ADAMW.block),)](
            master, exp_avg, exp_avg_sq, grad, shard, grad_scale, skip, size, *coefficients,
            HAS_SHARD=shard is not None, HAS_SCALE=grad_scale is not None, HAS_SKIP=skip is not None,
            MAXIMIZE=maximize, BLOCK=launch.ADAMW.block, num_warps=launch.ADAMW.num_warps, **_EXACT,
        )  # fmt: skip


def grad_norm(grad: Tensor, out: Tensor, *, accumulate: bool) -> None:
    """See ``overlap.ops.grad_norm``."""
    size = grad.numel()
    tiles = _programs(size, launch.NORM_ROWS * launch.NORM_LANES)
    partial = torch.empty(tiles, dtype=torch.float64, device=grad.device)
    with _on(grad.device):
        if tiles > 0:
            sum_squares_kernel[(tiles,)](
                grad, partial, size, ROWS=launch.NORM_ROWS, LANES=launch.NORM_LANES,
                num_warps=launch.NORM_WARPS, **_EXACT,
            )  # fmt: skip
        finish_kernel[(1,)](
            partial, out, tiles, ACCUMULATE=accumulate, LANES=launch.FINISH_LANES,
            num_warps=launch.NORM_WARPS, **_EXACT,
        )  # fmt: skip


def reduce_sum(rows: Sequence[Tensor], out: Tensor, *, scale: float, accumulate: bool) -> None:
    """See ``overlap.ops.reduce_sum``."""
    size = out.numel()
    if size == 0:
        return
    addresses = tuple(row.data_ptr() for row in rows)
    aligned = all(address % 16 == 0 for address in addresses)
    with _on(out.device):
        reduce_sum_kernel[(_programs(size, launch.REDUCE_SUM.block),)](
            _upload(addresses, out.device, _stream(out.device)), len(rows), rows[0], out, size, scale,
            ALIGNED=aligned, ACCUMULATE=accumulate, BLOCK=launch.REDUCE_SUM.block,
            num_warps=launch.REDUCE_SUM.num_warps, **_EXACT,
        )  # fmt: skip


def _programs(size: int, block: int) -> int:
    return (size + block - 1) // block


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@lru_cache(maxsize=4096)
def _upload(words: tuple[int, ...], device: torch.device, stream: int) -> Tensor:
    """Return ``words`` as int64 on ``device``; sent again only when they change.

    One copy per ``stream``: the tensor is filled in order with the stream of its first use, and no other
    stream waits for it.
    """
    host = torch.tensor(words, dtype=torch.int64, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)
