"""Lion: the sign of an interpolated momentum."""

import torch
from torch import Tensor

from overlap.ops.coefficients import LionCoefficients
from overlap.ops.reference import philox
from overlap.ops.reference.state import Rounding, gradient, narrow, store


@torch.no_grad()
def lion(
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
) -> None:
    """See ``overlap.ops.lion``."""
    c = coefficients
    g = gradient(grad, grad_scale, maximize)
    average = exp_avg.float()
    u = average * c.beta1 + g * c.blend1
    sign = torch.where(u.isnan(), u, (u > 0).float() - (u < 0).float())  # torch.sign makes 0 of NaN
    p = master.float() * c.decay - sign * c.lr
    m = average * c.beta2 + g * c.blend2
    rounding = Rounding(seed, start, step)
    store(master, narrow(p, master.dtype, rounding, philox.MASTER), skip)
    store(exp_avg, narrow(m, exp_avg.dtype, rounding, philox.FIRST), skip)
    store(shard, p, skip)
