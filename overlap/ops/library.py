"""The ops as ``torch.ops.overlap.*``, so that ``torch.compile`` and ``torch.export`` can carry them.

Under compilation the public functions call these instead of a face; the compiled program comes back here, and the
arguments are checked then. What a schema cannot say is said otherwise:

- slots are one list of integers, and tensors that ``unpack`` skips are left out together with their slots;
- a seed is the signed integer of the same 64 bits;
- ``lr`` is an fp64 tensor on the CPU, because it changes: a float would be compiled in, and each new one would
  compile again until torch gives up. ``step`` and ``start`` are symbolic integers, for the same reason. All other
  numbers are compiled in.

No derivatives: the ops write into tensors that they are given.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.library import Library, register_fake

from overlap.ops.coefficients import adamw_coefficients, lion_coefficients, sgd_coefficients
from overlap.ops.faces import face_of
from overlap.ops.slots import PackSlot

_LIBRARY = Library("overlap", "FRAGMENT")  # type: ignore[no-untyped-call]  # an op lives as long as this

_REST = "Tensor? grad_scale, Tensor? skip, bool maximize, SymInt? seed, SymInt start"


def words_of(slots: Sequence[PackSlot]) -> list[int]:
    """Return slots as one list of integers."""
    return [word for slot in slots for word in slot]


def as_tensor(number: float) -> Tensor:
    """Return ``number`` as fp64. By arithmetic, which torch compiles for any value; a filled tensor it does not."""
    return torch.ones((), dtype=torch.float64, device="cpu") * number


def _slots_of(words: Sequence[int]) -> tuple[PackSlot, ...]:
    return tuple(PackSlot(*words[index : index + 3]) for index in range(0, len(words), 3))


def _as_uint64(seed: int | None) -> int | None:
    return None if seed is None else seed % (1 << 64)


def _op(schema: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Define an op: the decorated function on CPU and CUDA, and nothing on tensors without memory."""

    def define(run: Callable[..., None]) -> Callable[..., None]:
        name = run.__name__
        _LIBRARY.define(f"{name}({schema}) -> ()")  # type: ignore[no-untyped-call]
        for device in ("CPU", "CUDA"):
            _LIBRARY.impl(name, run, device)  # type: ignore[no-untyped-call]
        register_fake(f"overlap::{name}", lambda *arguments: None, lib=_LIBRARY)
        return run

    return define


@_op("Tensor?[] grads, Tensor(a!) bucket, SymInt[] slots, float scale=1.0, bool accumulate=False")
def pack(
    grads: Sequence[Tensor | None], bucket: Tensor, slots: list[int], scale: float = 1.0, accumulate: bool = False
) -> None:
    """See ``overlap.ops.pack``."""
    face_of(bucket).pack(grads, bucket, _slots_of(slots), scale, accumulate)


@_op("Tensor bucket, Tensor(a!)[] tensors, SymInt[] slots, float scale=1.0")
def unpack(bucket: Tensor, tensors: list[Tensor], slots: list[int], scale: float = 1.0) -> None:
    """See ``overlap.ops.unpack``."""
    face_of(bucket).unpack(bucket, tensors, _slots_of(slots), scale)


@_op("Tensor[] rows, Tensor(a!) out, float scale=1.0, bool accumulate=False, Tensor(b!)? norm=None")
def reduce_sum(
    rows: list[Tensor], out: Tensor, scale: float = 1.0, accumulate: bool = False, norm: Tensor | None = None
) -> None:
    """See ``overlap.ops.reduce_sum``."""
    face_of(out).reduce_sum(rows, out, scale, accumulate, norm)


@_op("Tensor grad, Tensor(a!) out, bool accumulate=False")
def grad_norm(grad: Tensor, out: Tensor, accumulate: bool = False) -> None:
    """See ``overlap.ops.grad_norm``."""
    face_of(grad).grad_norm(grad, out, accumulate)


@_op(
    "Tensor(a!) master, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor grad, Tensor(d!)? shard, "
    f"Tensor lr, float beta1, float beta2, float eps, float weight_decay, SymInt step, {_REST}"
)
def adamw(
    master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, shard: Tensor | None,
    lr: Tensor, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
    grad_scale: Tensor | None, skip: Tensor | None, maximize: bool, seed: int | None, start: int,
) -> None:  # fmt: skip
    """See ``overlap.ops.adamw``."""
    face_of(master).adamw(
        master, exp_avg, exp_avg_sq, grad, shard,
        adamw_coefficients(lr.item(), beta1, beta2, eps, weight_decay, step),
        grad_scale, skip, maximize, _as_uint64(seed), start, step,
    )  # fmt: skip


@_op(
    "Tensor(a!) master, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor(d!) exp_avg_scale, "
    "Tensor(e!) exp_avg_sq_scale, Tensor grad, Tensor(f!)? shard, "
    f"Tensor lr, float beta1, float beta2, float eps, float weight_decay, SymInt step, {_REST}"
)
def adamw_8bit(
    master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, exp_avg_scale: Tensor, exp_avg_sq_scale: Tensor,
    grad: Tensor, shard: Tensor | None,
    lr: Tensor, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
    grad_scale: Tensor | None, skip: Tensor | None, maximize: bool, seed: int, start: int,
) -> None:  # fmt: skip
    """See ``overlap.ops.adamw_8bit``."""
    face_of(master).adamw_8bit(
        master, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, grad, shard,
        adamw_coefficients(lr.item(), beta1, beta2, eps, weight_decay, step),
        grad_scale, skip, maximize, seed % (1 << 64), start, step,
    )  # fmt: skip


@_op(
    "Tensor(a!) master, Tensor(b!) momentum_buffer, Tensor grad, Tensor(c!)? shard, "
    f"Tensor lr, float momentum, float dampening, float weight_decay, bool nesterov, SymInt step, {_REST}"
)
def sgd_momentum(
    master: Tensor, momentum_buffer: Tensor, grad: Tensor, shard: Tensor | None,
    lr: Tensor, momentum: float, dampening: float, weight_decay: float, nesterov: bool, step: int,
    grad_scale: Tensor | None, skip: Tensor | None, maximize: bool, seed: int | None, start: int,
) -> None:  # fmt: skip
    """See ``overlap.ops.sgd_momentum``."""
    face_of(master).sgd_momentum(
        master, momentum_buffer, grad, shard, sgd_coefficients(lr.item(), momentum, dampening, weight_decay, step),
        nesterov, grad_scale, skip, maximize, _as_uint64(seed), start, step,
    )  # fmt: skip


@_op(
    "Tensor(a!) master, Tensor(b!) exp_avg, Tensor grad, Tensor(c!)? shard, "
    f"Tensor lr, float beta1, float beta2, float weight_decay, SymInt step, {_REST}"
)
def lion(
    master: Tensor, exp_avg: Tensor, grad: Tensor, shard: Tensor | None,
    lr: Tensor, beta1: float, beta2: float, weight_decay: float, step: int,
    grad_scale: Tensor | None, skip: Tensor | None, maximize: bool, seed: int | None, start: int,
) -> None:  # fmt: skip
    """See ``overlap.ops.lion``."""
    face_of(master).lion(
        master, exp_avg, grad, shard, lion_coefficients(lr.item(), beta1, beta2, weight_decay, step),
        grad_scale, skip, maximize, _as_uint64(seed), start, step,
    )  # fmt: skip


@_op("Tensor values, Tensor(a!) payload, Tensor(b!) scales, int block=256")
def quantize(values: Tensor, payload: Tensor, scales: Tensor, block: int = 256) -> None:
    """See ``overlap.ops.quantize``."""
    face_of(values).quantize(values, payload, scales, block)


@_op("Tensor payload, Tensor scales, Tensor(a!) out, int block=256, bool accumulate=False")
def dequantize(payload: Tensor, scales: Tensor, out: Tensor, block: int = 256, accumulate: bool = False) -> None:
    """See ``overlap.ops.dequantize``."""
    face_of(payload).dequantize(payload, scales, out, block, accumulate)
