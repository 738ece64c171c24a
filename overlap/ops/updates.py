"""One optimizer step over one unit's flat shard, with the cast for the next gather: one pass over memory.

Common to all of them: one launch on CUDA, no host synchronisation, no recompilation when a scalar changes; ``g`` and
``b`` are the bytes of the gradient's and the shard's dtype. fp32 arithmetic whatever is stored. On GPUs the traffic is
the time, and on CPUs too with fp32 states; there the random bits and the codes of bf16 and 8-bit states take longer.

Random bits come from Philox4x32-10 keyed by ``seed``; an element's depend on seed, step and its global index alone, so
neither sharding nor splitting changes a result. Tensors are read as they lie in memory: resolve lazily negated views
(``tensor.is_neg()``) with ``resolve_neg()``; C++ cannot see that they are.
"""

import torch
from torch import Tensor
from torch.compiler import is_compiling

from overlap.errors import ConfigError, message
from overlap.ops.coefficients import adamw_coefficients, lion_coefficients, sgd_coefficients
from overlap.ops.faces import face_of
from overlap.ops.library import as_tensor
from overlap.ops.scalars import as_int64


def adamw(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    grad_scale: Tensor | None = None,
    skip: Tensor | None = None,
    maximize: bool = False,
    seed: int | None = None,
    start: int = 0,
) -> None:
    """Step as ``torch.optim.AdamW`` does.

    Traffic: ``24 + g + b``: master, m and v read and written, the gradient read, the shard written (30 with an fp32
    gradient and a bf16 shard). bf16 weights without a shard: ``20 + g``, or ``12 + g`` with bf16 moments.

    Args:
        master: fp32 weights, 1-D contiguous; or bf16 with ``seed`` and without ``shard``; updated.
        exp_avg: first moment, fp32 or bf16, 1-D contiguous, the length of ``master``; updated.
        exp_avg_sq: second moment, likewise, in the dtype of ``exp_avg``; updated.
        grad: fp32, bf16 or fp16, 1-D contiguous, the length of ``master``; read.
        shard: fp32, bf16 or fp16, 1-D contiguous, the length of ``master``; overwritten with the new weights, rounded
            to nearest even. None where the weights are gathered as they are, as with bf16 ``master``.
        lr: learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the denominator.
        weight_decay: decoupled decay, multiplied by ``lr``.
        step: this step's number, an int counted from 1.
        grad_scale: one-element fp32 tensor on the same device that multiplies the gradient (1 / loss scale, clip
            coefficient); None for 1.
        skip: one-element bool, int32, fp32 or fp64 tensor on the same device; nonzero (and NaN) leaves every buffer
            bit-unchanged. None never skips.
        maximize: ascend instead of descend.
        seed: int from 0 to 2^64 - 1: what is stored in bf16 (the shard excepted) is rounded stochastically. None: to
            nearest even. bf16 weights need one: rounded to nearest, small updates would be lost.
        start: global index of element 0, an int, a multiple of 8.

    Raises:
        ConfigError: lengths, dtypes or devices that do not fit together, ``step < 1``, wrong seed or start, numbers
            that are negative or not finite.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).
    """
    if is_compiling():
        torch.ops.overlap.adamw(
            master, exp_avg, exp_avg_sq, grad, shard, as_tensor(lr), beta1, beta2, eps, weight_decay, step,
            grad_scale, skip, maximize, as_int64(seed), start,
        )  # fmt: skip
    else:
        face_of(master).adamw(
            master, exp_avg, exp_avg_sq, grad, shard,
            adamw_coefficients(_rate(lr), beta1, beta2, eps, weight_decay, step),
            grad_scale, skip, maximize, seed, start, step,
        )  # fmt: skip


def adamw_8bit(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    exp_avg_scale: Tensor,
    exp_avg_sq_scale: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    seed: int,
    start: int = 0,
    grad_scale: Tensor | None = None,
    skip: Tensor | None = None,
    maximize: bool = False,
) -> None:
    """Step as ``adamw`` with moments of 8 bits, one fp32 scale per block of 256.

    The codes are rounded stochastically: to nearest, an average that moves by less than half a code would stand still.

    Traffic: ``12 + g + b`` (and 16 / 256 for the scales): 16 with a bf16 gradient and a bf16 shard.

    Args:
        master: fp32 weights, 1-D contiguous; updated.
        exp_avg: uint8, 1-D contiguous, sign and e4m3 code of the first moment; start from zeros; updated.
        exp_avg_sq: uint8, likewise, ue5m3 code (five exponent bits, no sign) of the second moment; start from zeros;
            updated.
        exp_avg_scale: fp32 ``[ceil(n / 256)]``; start from zeros; updated.
        exp_avg_sq_scale: fp32 ``[ceil(n / 256)]``; start from zeros; updated.
        grad: fp32, bf16 or fp16, 1-D contiguous, the length of ``master``; read.
        shard: fp32, bf16 or fp16, 1-D contiguous, the length of ``master``; overwritten with the new weights, rounded
            to nearest even. None where the weights are gathered as they are.
        lr: learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the denominator.
        weight_decay: decoupled decay, multiplied by ``lr``.
        step: this step's number, an int counted from 1.
        seed: int from 0 to 2^64 - 1; required.
        start: global index of element 0, an int, a multiple of 256, so that blocks stay whole.
        grad_scale: one-element fp32 tensor on the same device that multiplies the gradient (1 / loss scale, clip
            coefficient); None for 1.
        skip: one-element bool, int32, fp32 or fp64 tensor on the same device; nonzero (and NaN) leaves every buffer
            bit-unchanged. None never skips.
        maximize: ascend instead of descend.

    Raises:
        ConfigError: lengths, dtypes or devices that do not fit together, ``step < 1``, wrong seed or start, numbers
            that are negative or not finite.

    Source: Dettmers et al., "8-bit optimizers via block-wise quantization" (2021), with floating-point codes.
    """
    if is_compiling():
        torch.ops.overlap.adamw_8bit(
            master, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, grad, shard,
            as_tensor(lr), beta1, beta2, eps, weight_decay, step,
            grad_scale, skip, maximize, as_int64(seed), start,
        )  # fmt: skip
    else:
        face_of(master).adamw_8bit(
            master, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, grad, shard,
            adamw_coefficients(_rate(lr), beta1, beta2, eps, weight_decay, step),
            grad_scale, skip, maximize, seed, start, step,
        )  # fmt: skip


def sgd_momentum(
    master: Tensor,
    momentum_buffer: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    *,
    lr: float,
    momentum: float,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    step: int,
    grad_scale: Tensor | None = None,
    skip: Tensor | None = None,
    maximize: bool = False,
    seed: int | None = None,
    start: int = 0,
) -> None:
    """Step as ``torch.optim.SGD`` with momentum does.

    Traffic: ``16 + g + b``; ``8 + g`` with bf16 weights and momentum.

    Args:
        master: fp32 weights, 1-D contiguous; or bf16 with ``seed`` and without ``shard``; updated.
        momentum_buffer: fp32 or bf16, 1-D contiguous, the length of ``master``; start from zeros; updated.
        grad: fp32, bf16 or fp16, 1-D contiguous, the length of ``master``; read.
        shard: fp32, bf16 or fp16, 1-D contiguous, the length of ``master``; overwritten with the new weights, rounded
            to nearest even. None where the weights are gathered as they are, as with bf16 ``master``.
        lr: learning rate.
        momentum: decay of the buffer.
        dampening: ``1 - dampening`` of the gradient enters the buffer after the first step.
        weight_decay: coupled decay, added to the gradient.
        nesterov: step along the gradient plus ``momentum`` times the new buffer.
        step: this step's number, an int counted from 1.
        grad_scale: one-element fp32 tensor on the same device that multiplies the gradient (1 / loss scale, clip
            coefficient); None for 1.
        skip: one-element bool, int32, fp32 or fp64 tensor on the same device; nonzero (and NaN) leaves every buffer
            bit-unchanged. None never skips.
        maximize: ascend instead of descend.
        seed: int from 0 to 2^64 - 1: what is stored in bf16 (the shard excepted) is rounded stochastically. None: to
            nearest even. bf16 weights need one: rounded to nearest, small updates would be lost.
        start: global index of element 0, an int, a multiple of 8.

    Raises:
        ConfigError: lengths, dtypes or devices that do not fit together, ``step < 1``, wrong seed or start, numbers
            that are negative or not finite.

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).
    """
    if is_compiling():
        torch.ops.overlap.sgd_momentum(
            master, momentum_buffer, grad, shard, as_tensor(lr), momentum, dampening, weight_decay, nesterov, step,
            grad_scale, skip, maximize, as_int64(seed), start,
        )  # fmt: skip
    else:
        face_of(master).sgd_momentum(
            master, momentum_buffer, grad, shard, sgd_coefficients(_rate(lr), momentum, dampening, weight_decay, step),
            nesterov, grad_scale, skip, maximize, seed, start, step,
        )  # fmt: skip


def lion(
    master: Tensor,
    exp_avg: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    step: int,
    grad_scale: Tensor | None = None,
    skip: Tensor | None = None,
    maximize: bool = False,
    seed: int | None = None,
    start: int = 0,
) -> None:
    """Step by ``lr`` along the sign of an interpolated momentum.

    Traffic: ``16 + g + b``; ``8 + g`` with bf16 weights and momentum.

    Args:
        master: fp32 weights, 1-D contiguous; or bf16 with ``seed`` and without ``shard``; updated.
        exp_avg: fp32 or bf16, 1-D contiguous, the length of ``master``; updated.
        grad: fp32, bf16 or fp16, 1-D contiguous, the length of ``master``; read.
        shard: fp32, bf16 or fp16, 1-D contiguous, the length of ``master``; overwritten with the new weights, rounded
            to nearest even. None where the weights are gathered as they are, as with bf16 ``master``.
        lr: learning rate: what every weight moves.
        beta1: the average's part in the direction.
        beta2: decay of the average.
        weight_decay: decoupled decay, multiplied by ``lr``.
        step: this step's number, an int counted from 1.
        grad_scale: one-element fp32 tensor on the same device that multiplies the gradient (1 / loss scale, clip
            coefficient); None for 1.
        skip: one-element bool, int32, fp32 or fp64 tensor on the same device; nonzero (and NaN) leaves every buffer
            bit-unchanged. None never skips.
        maximize: ascend instead of descend.
        seed: int from 0 to 2^64 - 1: what is stored in bf16 (the shard excepted) is rounded stochastically. None: to
            nearest even. bf16 weights need one: rounded to nearest, small updates would be lost.
        start: global index of element 0, an int, a multiple of 8.

    Raises:
        ConfigError: lengths, dtypes or devices that do not fit together, ``step < 1``, wrong seed or start, numbers
            that are negative or not finite.

    Source: Chen et al., "Symbolic discovery of optimization algorithms" (2023).
    """
    if is_compiling():
        torch.ops.overlap.lion(
            master, exp_avg, grad, shard, as_tensor(lr), beta1, beta2, weight_decay, step,
            grad_scale, skip, maximize, as_int64(seed), start,
        )  # fmt: skip
    else:
        face_of(master).lion(
            master, exp_avg, grad, shard, lion_coefficients(_rate(lr), beta1, beta2, weight_decay, step),
            grad_scale, skip, maximize, seed, start, step,
        )  # fmt: skip


def _rate(lr: float) -> float:
    """Read a rate that may also be a tensor, as schedulers for compiled programs keep it."""
    try:
        return float(lr)
    except (TypeError, ValueError):
        raise ConfigError(message("lr", "be a number", lr, "pass a Python float")) from None
