"""What every face provides: the ops, by position, with arguments that fit (``check/`` or the face itself saw to it)."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from overlap.ops.coefficients import AdamWCoefficients, LionCoefficients, SGDCoefficients
from overlap.ops.slots import PackSlot


class Face(Protocol):
    """The signatures; the meaning of each is in the public function of the same name."""

    def pack(
        self,
        grads: Sequence[Tensor | None],
        bucket: Tensor,
        slots: tuple[PackSlot, ...],
        scale: float,
        accumulate: bool,
        /,
    ) -> None: ...

    def unpack(
        self, bucket: Tensor, tensors: Sequence[Tensor | None], slots: tuple[PackSlot, ...], scale: float, /
    ) -> None: ...

    def reduce_sum(
        self, rows: Sequence[Tensor], out: Tensor, scale: float, accumulate: bool, norm: Tensor | None, /
    ) -> None: ...

    def grad_norm(self, grad: Tensor, out: Tensor, accumulate: bool, /) -> None: ...

    def adamw(
        self,
        master: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        grad: Tensor,
        shard: Tensor | None,
        coefficients: AdamWCoefficients,
        grad_scale: Tensor | None,
        skip: Tensor | None,
        maximize: bool,
        seed: int | None,
        start: int,
        step: int,
        /,
    ) -> None: ...

    def adamw_8bit(
        self,
        master: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        exp_avg_scale: Tensor,
        exp_avg_sq_scale: Tensor,
        grad: Tensor,
        shard: Tensor | None,
        coefficients: AdamWCoefficients,
        grad_scale: Tensor | None,
        skip: Tensor | None,
        maximize: bool,
        seed: int,
        start: int,
        step: int,
        /,
    ) -> None: ...

    def sgd_momentum(
        self,
        master: Tensor,
        momentum_buffer: Tensor,
        grad: Tensor,
        shard: Tensor | None,
        coefficients: SGDCoefficients,
        nesterov: bool,
        grad_scale: Tensor | None,
        skip: Tensor | None,
        maximize: bool,
        seed: int | None,
        start: int,
        step: int,
        /,
    ) -> None: ...

    def lion(
        self,
        master: Tensor,
        exp_avg: Tensor,
        grad: Tensor,
        shard: Tensor | None,
        coefficients: LionCoefficients,
        grad_scale: Tensor | None,
        skip: Tensor | None,
        maximize: bool,
        seed: int | None,
        start: int,
        step: int,
        /,
    ) -> None: ...

    def quantize(self, values: Tensor, payload: Tensor, scales: Tensor, block: int, /) -> None: ...

    def dequantize(self, payload: Tensor, scales: Tensor, out: Tensor, block: int, accumulate: bool, /) -> None: ...
