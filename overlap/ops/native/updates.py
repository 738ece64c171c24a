"""The update rules in C++ (csrc/adamw.cpp, adamw_8bit.cpp, sgd_momentum.cpp, lion.cpp; skeleton in update.h)."""

from torch import Tensor

from overlap import _native
from overlap.ops import check
from overlap.ops.coefficients import AdamWCoefficients, LionCoefficients, SGDCoefficients
from overlap.ops.native.refusal import unreadable
from overlap.ops.threads import get_num_threads


def adamw(
    master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, shard: Tensor | None,
    coefficients: AdamWCoefficients, grad_scale: Tensor | None, skip: Tensor | None, maximize: bool,
    seed: int | None, start: int, step: int, /,
) -> None:  # fmt: skip
    """See ``overlap.ops.adamw``."""
    if not _native.adamw(
        master, exp_avg, exp_avg_sq, grad, shard, coefficients, grad_scale, skip, maximize, seed, start, step,
        get_num_threads(),
    ):  # fmt: skip
        check.adamw(
            master, exp_avg, exp_avg_sq, grad, shard, coefficients, grad_scale, skip, maximize, seed, start, step
        )
        raise unreadable("adamw")


def adamw_8bit(
    master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, exp_avg_scale: Tensor, exp_avg_sq_scale: Tensor,
    grad: Tensor, shard: Tensor | None, coefficients: AdamWCoefficients, grad_scale: Tensor | None,
    skip: Tensor | None, maximize: bool, seed: int, start: int, step: int, /,
) -> None:  # fmt: skip
    """See ``overlap.ops.adamw_8bit``."""
    if not _native.adamw_8bit(
        master, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, grad, shard, coefficients, grad_scale, skip,
        maximize, seed, start, step, get_num_threads(),
    ):  # fmt: skip
        check.adamw_8bit(
            master, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, grad, shard, coefficients, grad_scale,
            skip, maximize, seed, start, step,
        )  # fmt: skip
        raise unreadable("adamw_8bit")


def sgd_momentum(
    master: Tensor, momentum_buffer: Tensor, grad: Tensor, shard: Tensor | None, coefficients: SGDCoefficients,
    nesterov: bool, grad_scale: Tensor | None, skip: Tensor | None, maximize: bool, seed: int | None, start: int,
    step: int, /,
) -> None:  # fmt: skip
    """See ``overlap.ops.sgd_momentum``."""
    if not _native.sgd_momentum(
        master, momentum_buffer, grad, shard, coefficients, nesterov, grad_scale, skip, maximize, seed, start, step,
        get_num_threads(),
    ):  # fmt: skip
        check.sgd_momentum(
            master, momentum_buffer, grad, shard, coefficients, nesterov, grad_scale, skip, maximize, seed, start, step
        )
        raise unreadable("sgd_momentum")


def lion(
    master: Tensor, exp_avg: Tensor, grad: Tensor, shard: Tensor | None, coefficients: LionCoefficients,
    grad_scale: Tensor | None, skip: Tensor | None, maximize: bool, seed: int | None, start: int, step: int, /,
) -> None:  # fmt: skip
    """See ``overlap.ops.lion``."""
    if not _native.lion(
        master, exp_avg, grad, shard, coefficients, grad_scale, skip, maximize, seed, start, step, get_num_threads()
    ):  # fmt: skip
        check.lion(master, exp_avg, grad, shard, coefficients, grad_scale, skip, maximize, seed, start, step)
        raise unreadable("lion")
