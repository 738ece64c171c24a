"""What every launch needs: the device it goes to, its grid, and how its arithmetic is compiled."""

from contextlib import AbstractContextManager, nullcontext

import torch

from overlap.ops.scalars import as_int64

EXACT = {"enable_fp_fusion": False}
"""Multiply and add round separately, as on the CPU: the same bits from every face."""


def programs(size: int, block: int) -> int:
    """Return how many blocks cover ``size`` elements."""
    return (size + block - 1) // block


def on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def stream_of(device: torch.device) -> int:
    """Return the stream that launches on ``device`` go to; 0 on CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def signed(seed: int | None) -> int:
    """Return the 64 bits of ``seed`` as the int64 that kernels take; 0 without one."""
    return as_int64(seed) or 0
