"""SGD with momentum."""

import torch
from torch import Tensor

from overlap.ops.coefficients import SGDCoefficients
from overlap.ops.reference import philox
from overlap.ops.reference.state import Rounding, gradient, narrow, store


@torch.no_grad()
def sgd_momentum(
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
) -> None:
    """See ``overlap.ops.sgd_momentum``."""
    c = coefficients
    w = master.float()
    g = gradient(grad, grad_scale, maximize) + w * c.weight_decay
    b = momentum_buffer.float() * c.keep + g * c.blend
    d = g + b * c.look_ahead if nesterov else b
    p = w - d * c.lr
    rounding = Rounding(seed, start, step)
    store(master, narrow(p, master.dtype, rounding, philox.MASTER), skip)
    store(momentum_buffer, narrow(b, momentum_buffer.dtype, rounding, philox.FIRST), skip)
    store(shard, p, skip)
