"""What csrc/bind_*.cpp defines. Each function says whether its arguments fitted; overlap/ops/native/ calls them."""

from collections.abc import Sequence

from torch import Tensor

def pack(
    grads: Sequence[Tensor | None] | None,
    bucket: Tensor,
    layout: tuple[int, int, int, int, int],
    scale: float,
    accumulate: bool,
    threads: int,
    /,
) -> bool: ...
def unpack(
    bucket: Tensor,
    tensors: Sequence[Tensor | None] | None,
    layout: tuple[int, int, int, int, int],
    scale: float,
    threads: int,
    /,
) -> bool: ...
def grad_norm(grad: Tensor, out: Tensor, accumulate: bool, threads: int, /) -> bool: ...
def reduce_sum(
    rows: Sequence[Tensor | None] | None,
    out: Tensor,
    scale: float,
    accumulate: bool,
    norm: Tensor | None,
    threads: int,
    /,
) -> bool: ...
def adamw(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: tuple[float, ...],
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
    seed: int | None,
    start: int,
    step: int,
    threads: int,
    /,
) -> bool: ...
def adamw_8bit(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    exp_avg_scale: Tensor,
    exp_avg_sq_scale: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: tuple[float, ...],
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
    seed: int,
    start: int,
    step: int,
    threads: int,
    /,
) -> bool: ...
def sgd_momentum(
    master: Tensor,
    momentum_buffer: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: tuple[float, ...],
    nesterov: bool,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
    seed: int | None,
    start: int,
    step: int,
    threads: int,
    /,
) -> bool: ...
def lion(
    master: Tensor,
    exp_avg: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: tuple[float, ...],
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
    seed: int | None,
    start: int,
    step: int,
    threads: int,
    /,
) -> bool: ...
def quantize(values: Tensor, payload: Tensor, scales: Tensor, block: int, threads: int, /) -> bool: ...
def dequantize(payload: Tensor, scales: Tensor, out: Tensor, block: int, accumulate: bool, threads: int, /) -> bool: ...
