"""Calls of every op in its main dtypes, as positional arguments of a face: to compile ahead of time, and to compare.

A ``scalars`` of another value changes every number of a call (seed, step, start, coefficients, scale) and nothing
else: a face must not compile again for it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from overlap.ops.coefficients import adamw_coefficients, lion_coefficients, sgd_coefficients
from overlap.ops.slots import PackSlot

FP32, BF16, FP16, E4M3 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn


class Call(NamedTuple):
    """One op and its arguments, made for flats of a size."""

    label: str
    op: str
    arguments: Callable[[int, int], list]
    """Of size and scalars, both at least 1."""
    variant: bool = False
    """Whether another call has the same kernel: one architecture is then enough."""


def flat(size: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(size).to(dtype)


def empty(size: int, dtype: torch.dtype | None) -> Tensor | None:
    return None if dtype is None else torch.full((size,), float("nan"), dtype=dtype)


def rest(scalars: int, *, seed: bool = True) -> list:
    """grad_scale, skip, maximize, seed, start, step."""
    numbers = ((1 << 64) - scalars if seed else None, 256 * scalars, scalars)
    return [torch.full((1,), 0.37), torch.zeros(1, dtype=torch.int32), True, *numbers]


def adamw(master, moments, grad, shard, size: int, scalars: int) -> list:
    coefficients = adamw_coefficients(1e-3 / scalars, 0.9, 0.99, 1e-8, 0.1, scalars)
    states = [flat(size, master), flat(size, moments), flat(size, moments).abs()]
    return [*states, flat(size, grad), empty(size, shard), coefficients, *rest(scalars, seed=moments == BF16)]


def adamw_8bit(size: int, scalars: int) -> list:
    blocks = -(-size // 256)
    codes = [torch.randint(0, 127, (size,), dtype=torch.uint8), torch.randint(0, 256, (size,), dtype=torch.uint8)]
    scales = [torch.rand(blocks) * 1e-3, torch.rand(blocks) * 1e-6]
    coefficients = adamw_coefficients(1e-3 / scalars, 0.9, 0.99, 1e-8, 0.1, scalars)
    return [flat(size, FP32), *codes, *scales, flat(size, BF16), empty(size, BF16), coefficients, *rest(scalars)]


def sgd_momentum(size: int, scalars: int) -> list:
    coefficients = sgd_coefficients(1e-3 / scalars, 0.9, 0.1, 0.1, scalars)
    states = [flat(size, BF16) for _ in range(3)]
    return [*states, None, coefficients, True, *rest(scalars)]


def lion(size: int, scalars: int) -> list:
    coefficients = lion_coefficients(1e-3 / scalars, 0.9, 0.99, 0.1, scalars)
    return [flat(size, FP32), flat(size, BF16), flat(size, BF16), empty(size, BF16), coefficients, *rest(scalars)]


def slots_for(tensors: list[Tensor | None], numels: list[int], world: int) -> tuple[tuple[PackSlot, ...], int]:
    """Slots of 16-byte aligned rows, one after the other; and the width of the bucket."""
    slots, offset = [], 0
    for numel in numels:
        chunk = -(-numel // world)
        slots.append(PackSlot(offset, chunk, numel))
        offset += -(-chunk // 8) * 8
    assert len(tensors) == len(slots)
    return tuple(slots), offset


def tensors_of(size: int, scalars: int) -> list[Tensor | None]:
    """Contiguous, transposed and strided tensors, and one that is not there."""
    extra = scalars % 7
    return [
        flat(2 * size, FP32),
        flat(7 * (3 + extra), BF16).view(7, -1).t(),
        None,
        flat(2 * 3 * 4 * 10, FP16).view(2, 3, 4, 10).permute(2, 0, 3, 1)[:, :, ::2],
        flat(size, BF16),
    ]


def bucket_of(dtype: torch.dtype, size: int, scalars: int) -> tuple[list, Tensor, tuple[PackSlot, ...]]:
    tensors = tensors_of(size, scalars)
    numels = [5 if tensor is None else tensor.numel() for tensor in tensors]
    slots, width = slots_for(tensors, numels, world=2)
    return tensors, flat(2 * width, dtype).view(2, width), slots


def pack(dtype, accumulate: bool, size: int, scalars: int) -> list:
    tensors, bucket, slots = bucket_of(dtype, size, scalars)
    return [tensors, bucket, slots, 1 / scalars, accumulate]


def unpack(dtype, scale: float, size: int, scalars: int) -> list:
    tensors, bucket, slots = bucket_of(dtype, size, scalars)
    return [bucket, tensors, slots, scale if scale == 1.0 else scale / scalars]


def reduce_sum(row, out, accumulate: bool, norm: bool, size: int, scalars: int) -> list:
    rows = [flat(size, row) for _ in range(1 + scalars % 7)]
    sums = torch.tensor([2.0, 0.0], dtype=torch.float64) if norm else None
    return [rows, flat(size, out), 1 / scalars, accumulate, sums]


def grad_norm(dtype, size: int, scalars: int) -> list:
    return [flat(size, dtype), torch.tensor([1.0 / scalars, 0.0], dtype=torch.float64), True]


def quantize(dtype, payload, block: int, size: int, scalars: int) -> list:
    del scalars
    codes = torch.full((size,), 1, dtype=torch.int8).view(payload)
    return [flat(size, dtype), codes, empty(-(-size // block), FP32), block]


def dequantize(payload, out, block: int, accumulate: bool, size: int, scalars: int) -> list:
    del scalars
    codes = torch.randint(-127, 127, (size,)).to(torch.int8).view(payload)
    return [codes, torch.rand(-(-size // block)), flat(size, out), block, accumulate]


CALLS = (
    Call("adamw fp32", "adamw", partial(adamw, FP32, FP32, BF16, BF16)),
    Call("adamw bf16 moments", "adamw", partial(adamw, FP32, BF16, FP32, BF16), variant=True),
    Call("adamw bf16", "adamw", partial(adamw, BF16, BF16, BF16, None)),
    Call("adamw_8bit", "adamw_8bit", adamw_8bit),
    Call("sgd_momentum bf16", "sgd_momentum", sgd_momentum),
    Call("lion fp32, bf16 average", "lion", lion),
    Call("pack to bf16", "pack", partial(pack, BF16, False)),
    Call("pack to fp32, accumulating", "pack", partial(pack, FP32, True), variant=True),
    Call("unpack from bf16", "unpack", partial(unpack, BF16, 1.0)),
    Call("unpack from fp32, scaled", "unpack", partial(unpack, FP32, 0.5), variant=True),
    Call("reduce_sum bf16 to fp32, accumulating", "reduce_sum", partial(reduce_sum, BF16, FP32, True, False)),
    Call("reduce_sum fp32 to bf16, with norm", "reduce_sum", partial(reduce_sum, FP32, BF16, False, True)),
    Call("grad_norm bf16", "grad_norm", partial(grad_norm, BF16)),
    Call("quantize bf16 to int8", "quantize", partial(quantize, BF16, torch.int8, 256)),
    Call("quantize fp32 to e4m3, one block", "quantize", partial(quantize, FP32, E4M3, 16384), variant=True),
    Call("dequantize int8 to fp32, accumulating", "dequantize", partial(dequantize, torch.int8, FP32, 256, True)),
    Call("dequantize e4m3 to bf16", "dequantize", partial(dequantize, E4M3, BF16, 32, False), variant=True),
)
