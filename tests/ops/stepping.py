"""The four optimizer steps as one kind of thing: buffers to step on, and a call that takes them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from ops.numeric import CPU, placed, wild
from torch import Tensor

from overlap import ops

ADAMW = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "step": 3}


class Step(NamedTuple):
    """One op, and what it steps on."""

    op: Callable[..., None]
    states: Callable[[int, torch.dtype], list[Tensor]]
    """Of a size and a dtype: what lies between the weights and the gradient."""
    options: dict[str, object]
    launch: str
    unit: int = 8
    """Elements that belong together: flats may be cut at its multiples."""
    eight_bit: bool = False

    def buffers(
        self, size: int, *, master=torch.float32, state=torch.float32, grad=torch.float32, shard=torch.bfloat16
    ) -> list[Tensor | None]:
        """Fresh buffers on the CPU, in the op's order, of every magnitude; the shard is poisoned."""
        shards = None if shard is None or master != torch.float32 else torch.full((size,), float("nan"), dtype=shard)
        return [wild(size, master, CPU), *self.states(size, state), wild(size, grad, CPU), shards]

    def cut(self, buffers: list[Tensor | None], begin: int, end: int) -> list[Tensor | None]:
        """Elements ``[begin, end)`` of buffers, and their scales."""
        cut = [None if each is None else each[begin:end] for each in buffers]
        if self.eight_bit:
            cut[3:5] = [scales[begin // 256 : -(-end // 256)] for scales in buffers[3:5]]
        return cut


def moved(buffers: list[Tensor | None], device: torch.device, *, shift: int = 0) -> list[Tensor | None]:
    """Copies on ``device``, each starting ``shift`` elements after an aligned address."""
    return [None if each is None else placed(each, device, shift=shift) for each in buffers]


def _moments(size: int, dtype: torch.dtype) -> list[Tensor]:
    return [wild(size, dtype, CPU), wild(size, dtype, CPU).abs()]


def _coded(size: int, dtype: torch.dtype) -> list[Tensor]:
    del dtype
    signed = torch.randint(0, 127, (size,)) + 128 * torch.randint(0, 2, (size,))
    unsigned = torch.randint(0, 256, (size,))
    scales = [torch.randn(-(-size // 256)).exp2() * 2.0**-10 for _ in range(2)]
    return [signed.to(torch.uint8), unsigned.to(torch.uint8), *scales]


def _momentum(size: int, dtype: torch.dtype) -> list[Tensor]:
    return [wild(size, dtype, CPU)]


SGD = {"lr": 1e-2, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1, "nesterov": True, "step": 3}
LION = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "step": 3}

STEPS = {
    "adamw": Step(ops.adamw, _moments, ADAMW, "ADAMW"),
    "adamw_8bit": Step(ops.adamw_8bit, _coded, ADAMW | {"seed": 11}, "ADAMW_8BIT", 256, True),
    "sgd_momentum": Step(ops.sgd_momentum, _momentum, SGD, "SGD_MOMENTUM"),
    "lion": Step(ops.lion, _momentum, LION, "LION"),
}
