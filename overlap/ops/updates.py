"""One optimizer step over one unit's flat shard, with the cast for the next gather: one pass over memory.

Common to all of them: one launch on CUDA, no host synchronisation, no recompilation when a scalar changes; ``g`` and
``b`` are the bytes of the gradient's and the shard's dtype. fp32 arithmetic whatever is stored.

Arguments that mean the same everywhere:

    grad        fp32, bf16 or fp16, 1-D contiguous, the length of ``master``; read
    shard       receives the new weights in its dtype (fp32, bf16 or fp16), rounded to nearest even, or None where
                the weights are gathered as they are
    step        this step's number, counted from 1
    grad_scale  one-element fp32 tensor that multiplies the gradient (1 / loss scale, clip coefficient)
    skip        one-element fp32, fp64 or int32 tensor; nonzero (and NaN) leaves every buffer bit-unchanged
    maximize    ascend instead of descend
    seed        0 to 2^64 - 1: what is stored in bf16 is rounded stochastically, by Philox4x32-10 with this key; None:
                to nearest even. bf16 weights need one: rounded to nearest, small updates would be lost
    start       global index of element 0 (a multiple of 8): an element's random bits depend on seed, step and global
                index, so neither sharding nor splitting changes a result
"""

import torch
from torch import Tensor
from torch.compiler import is_compiling

from overlap.ops.coefficients import adamw_coefficients, lion_coefficients, sgd_coefficients
from overlap.ops.faces import face_of
from overlap.ops.library import as_int64, as_tensor


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
    """Step as ``torch.optim.AdamW`` does. The other arguments are those of this module.

    Traffic: ``24 + g + b``: master, m and v read and written, the gradient read, the shard written (30 with an fp32
    gradient and a bf16 shard). bf16 weights without a shard: ``20 + g``, or ``12 + g`` with bf16 moments.

    Args:
        master: fp32 weights, 1-D contiguous; or bf16 with ``seed`` and without ``shard``; updated.
        exp_avg: first moment, fp32 or bf16; updated.
        exp_avg_sq: second moment, the dtype of ``exp_avg``; updated.
        lr: learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the denominator.
        weight_decay: decoupled decay, multiplied by ``lr``.

    Raises:
        ConfigError: lengths, dtypes or devices that do not fit together, ``step < 1``, wrong seed or start.

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
            adamw_coefficients(float(lr), beta1, beta2, eps, weight_decay, step),
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
    """Step as ``adamw`` with moments of 8 bits, one fp32 scale per block of 256. Other arguments as in this module.

    The codes are rounded stochastically: to nearest, an average that moves by less than half a code would stand still.

    Traffic: ``12 + g + b`` (and 16 / 256 for the scales): 16 with a bf16 gradient and a bf16 shard.

    Args:
        master: fp32 weights, 1-D contiguous; updated.
        exp_avg: uint8, sign and e4m3 code of the first moment; start from zeros; updated.
        exp_avg_sq: uint8, ue5m3 code (five exponent bits, no sign) of the second moment; start from zeros; updated.
        exp_avg_scale: fp32 ``[ceil(n / 256)]``; start from zeros; updated.
        exp_avg_sq_scale: fp32 ``[ceil(n / 256)]``; start from zeros; updated.
        lr: learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the denominator.
        weight_decay: decoupled decay, multiplied by ``lr``.
        seed: required.
        start: a multiple of 256, so that blocks stay whole.

    Raises:
        ConfigError: lengths, dtypes or devices that do not fit together, ``step < 1``, wrong seed or start.

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
            adamw_coefficients(float(lr), beta1, beta2, eps, weight_decay, step),
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
    """Step as ``torch.optim.SGD`` with momentum does. The other arguments are those of this module.

    Traffic: ``16 + g + b``; ``8 + g`` with bf16 weights and momentum.

    Args:
        master: fp32 weights, 1-D contiguous; or bf16 with ``seed`` and without ``shard``; updated.
        momentum_buffer: fp32 or bf16; start from zeros; updated.
        lr: learning rate.
        momentum: decay of the buffer.
        dampening: ``1 - dampening`` of the gradient enters the buffer after the first step.
        weight_decay: coupled decay, added to the gradient.
        nesterov: step along the gradient plus ``momentum`` times the new buffer.

    Raises:
        ConfigError: lengths, dtypes or devices that do not fit together, ``step < 1``, wrong seed or start.

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).
    """
    if is_compiling():
        torch.ops.overlap.sgd_momentum(
            master, momentum_buffer, grad, shard, as_tensor(lr), momentum, dampening, weight_decay, nesterov, step,
            grad_scale, skip, maximize, as_int64(seed), start,
        )  # fmt: skip
    else:
        face_of(master).sgd_momentum(
            master, momentum_buffer, grad, shard, sgd_coefficients(float(lr), momentum, dampening, weight_decay, step),
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
    """Step by ``lr`` along the sign of an interpolated momentum. The other arguments are those of this module.

    Traffic: ``16 + g + b``; ``8 + g`` with bf16 weights and momentum.

    Args:
        master: fp32 weights, 1-D contiguous; or bf16 with ``seed`` and without ``shard``; updated.
        exp_avg: fp32 or bf16; updated.
        lr: learning rate: what every weight moves.
        beta1: the average's part in the direction.
        beta2: decay of the average.
        weight_decay: decoupled decay, multiplied by ``lr``.

    Raises:
        ConfigError: lengths, dtypes or devices that do not fit together, ``step < 1``, wrong seed or start.

    Source: Chen et al., "Symbolic discovery of optimization algorithms" (2023).
    """
    if is_compiling():
        torch.ops.overlap.lion(
            master, exp_avg, grad, shard, as_tensor(lr), beta1, beta2, weight_decay, step,
            grad_scale, skip, maximize, as_int64(seed), start,
        )  # fmt: skip
    else:
        face_of(master).lion(
            master, exp_avg, grad, shard, lion_coefficients(float(lr), beta1, beta2, weight_decay, step),
            grad_scale, skip, maximize, seed, start, step,
        )  # fmt: skip
