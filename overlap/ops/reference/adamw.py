"""AdamW, and the step itself, which the 8-bit variant shares."""

import torch
from torch import Tensor

from overlap.ops.coefficients import AdamWCoefficients
from overlap.ops.reference import philox
from overlap.ops.reference.state import Rounding, gradient, narrow, store


@torch.no_grad()
def adamw(
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
) -> None:
    """See ``overlap.ops.adamw``."""
    g = gradient(grad, grad_scale, maximize)
    p, m, v = adamw_step(master.float(), exp_avg.float(), exp_avg_sq.float(), g, coefficients)
    rounding = Rounding(seed, start, step)
    store(master, narrow(p, master.dtype, rounding, philox.MASTER), skip)
    store(exp_avg, narrow(m, exp_avg.dtype, rounding, philox.FIRST), skip)
    store(exp_avg_sq, narrow(v, exp_avg_sq.dtype, rounding, philox.SECOND), skip)
    store(shard, p, skip)


def adamw_step(
    master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, g: Tensor, c: AdamWCoefficients
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new weights and moments in fp32."""
    m = exp_avg + (g - exp_avg) * c.blend1
    v = exp_avg_sq * c.beta2 + (g * c.blend2) * g
    # On CPU torch.sqrt of float32 is not correctly rounded: through float64 it is. On CUDA dividing by a number
    # multiplies by its reciprocal: a tensor is divided by.
    root = v.double().sqrt().float() / torch.full_like(v, c.root_correction2)
    return master * c.decay - (m * c.step_size) / (root + c.eps), m, v
