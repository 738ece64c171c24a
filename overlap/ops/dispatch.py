"""The public fused ops: check the arguments, then run the face that fits the device.

Traffic is given per element; every op is bound by memory, so it is also the time. ``g`` and ``b`` are the
bytes of the gradient's and the bucket's (or shard's) dtype.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from overlap.errors import ConfigError, message
from overlap.ops import check
from overlap.ops.coefficients import adamw_coefficients
from overlap.ops.faces import face_of
from overlap.ops.slots import PackSlot


def pack(
    grads: Sequence[Tensor | None],
    bucket: Tensor,
    slots: tuple[PackSlot, ...],
    *,
    scale: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Flatten, scale and cast many gradients into one rank-major bucket. One launch on CUDA.

    Element ``k`` of gradient ``i`` goes to ``bucket[k // chunk_i, offset_i + k % chunk_i]``, multiplied by
    ``scale`` in fp32 and rounded once. Every other element of the bucket becomes 0. With ``accumulate`` the
    product is added to the bucket in fp32, and gaps, padding and missing gradients are left alone.

    Traffic: ``g`` read + ``b`` written (``g + 2b`` with accumulate). A non-contiguous gradient is copied
    first: ``2g`` more.

    Args:
        grads: fp32, bf16 or fp16 tensors of any shape and strides; None stands for zeros.
        bucket: contiguous ``[world, width]``, fp32, bf16 or fp16.
        slots: where each gradient goes; any order, no overlap.
        scale: multiplies every gradient.
        accumulate: add to the bucket instead of overwriting it.

    Raises:
        ConfigError: dtypes, devices, shapes or slots that do not fit together.
    """
    check.check_pack(grads, bucket, slots)
    flat = [None if grad is None else grad.contiguous() for grad in grads]
    face_of(bucket.device).pack(flat, bucket, slots, scale=scale, accumulate=accumulate)


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
) -> None:
    """Update one unit's flat shard as ``torch.optim.AdamW`` does, and cast it for the next gather: one pass.

    Traffic: ``24 + g + b``: master, m and v read and written, the gradient read, the shard written
    (30 with an fp32 gradient and a bf16 shard). One launch, no host synchronisation, no recompilation when
    a scalar changes.

    Args:
        master: fp32 weights, 1-D contiguous; updated.
        exp_avg: fp32 first moment, same length; updated.
        exp_avg_sq: fp32 second moment, same length; updated.
        grad: fp32, bf16 or fp16 gradient, same length; read.
        shard: receives the new weights in its dtype (fp32, bf16 or fp16), or None where it is the master.
        lr: learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the denominator.
        weight_decay: decoupled decay, multiplied by ``lr``.
        step: this step's number, counted from 1.
        grad_scale: one-element fp32 tensor that multiplies the gradient (1 / loss scale, clip coefficient).
        skip: one-element fp32, fp64 or int32 tensor; nonzero leaves every buffer bit-unchanged.
        maximize: ascend instead of descend.

    Raises:
        ConfigError: lengths, dtypes or devices differ, or ``step < 1``.
    """
    for name, tensor in (("master", master), ("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)):
        check.check_flat(name, tensor, master, check.FP32)
    check.check_flat("grad", grad, master, check.FLOATS)
    if shard is not None:
        check.check_flat("shard", shard, master, check.FLOATS)
    check.check_scalar("grad_scale", grad_scale, master, check.FP32)
    check.check_scalar("skip", skip, master, (torch.float32, torch.float64, torch.int32))
    check.check_step(step)
    coefficients = adamw_coefficients(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, step=step)
    face_of(master.device).adamw(
        master, exp_avg, exp_avg_sq, grad, shard, coefficients,
        grad_scale=grad_scale, skip=skip, maximize=maximize,
    )  # fmt: skip


def grad_norm(grad: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    """Sum the squares of a flat gradient, and tell whether all of it was finite, in one pass.

    ``out[0]`` is the sum in fp64, ``out[1]`` is 1 where a NaN or Inf was met (``out[0]`` is then NaN or Inf),
    else 0; so both can be summed over ranks. The order of the sum depends on the length alone: same bits for
    any thread count, grid or schedule.

    Traffic: ``g`` read. ``accumulate`` adds to ``out[0]`` and takes the maximum of ``out[1]``.

    Args:
        grad: fp32, bf16 or fp16, 1-D contiguous; may be empty.
        out: fp64 ``[2]`` on the same device.
        accumulate: combine with what ``out`` holds instead of overwriting it.

    Raises:
        ConfigError: wrong dtype, shape or device.
    """
    check.check_flat("grad", grad, grad, check.FLOATS)
    check.check_dtype("out", out, (torch.float64,))
    check.check_device("out", out, grad)
    if tuple(out.shape) != (2,) or not out.is_contiguous():
        raise ConfigError(message("out", "be a contiguous [2] tensor", tuple(out.shape), "allocate two fp64"))
    face_of(grad.device).grad_norm(grad, out, accumulate=accumulate)


def reduce_sum(rows: Sequence[Tensor], out: Tensor, *, scale: float = 1.0, accumulate: bool = False) -> None:
    """Sum ``k`` rows in the given order in fp32, scale, and round once: the local half of a reduce-scatter.

    ``out = ((r0 + r1) + r2 ...) * scale``, or ``out + that`` with ``accumulate``. The order is the caller's,
    so results do not depend on bucketing, threads or grid; fp32 rows give the same bits on every face.

    Traffic: ``k * g`` read + ``b`` written (one more ``b`` with accumulate).

    Args:
        rows: at least one 1-D contiguous tensor; same length and dtype (fp32, bf16 or fp16).
        out: fp32, bf16 or fp16, same length; may be exactly one of the rows, never a shifted part of one.
        scale: multiplies the sum.
        accumulate: add to ``out``, last, in fp32.

    Raises:
        ConfigError: no rows, or lengths, dtypes or devices that differ.
    """
    if len(rows) == 0:
        raise ConfigError(message("rows", "hold at least one tensor", "none", "pass one row per rank"))
    check.check_dtype("rows[0]", rows[0], check.FLOATS)
    for index, row in enumerate(rows):
        check.check_flat(f"rows[{index}]", row, rows[0], (rows[0].dtype,))
    check.check_flat("out", out, rows[0], check.FLOATS)
    face_of(out.device).reduce_sum(rows, out, scale=scale, accumulate=accumulate)
