"""AdamW's scalars of one step, computed on the host in float64 and rounded once to float32 by each face."""

import math
from typing import NamedTuple


class AdamWCoefficients(NamedTuple):
    """What the update loop needs; nothing in it changes the compiled kernel."""

    decay: float
    """``1 - lr * weight_decay``: multiplies the weight first (decoupled decay)."""
    blend1: float
    """``1 - beta1``: m += blend1 * (g - m)."""
    beta2: float
    blend2: float
    """``1 - beta2``: v = beta2 * v + (blend2 * g) * g."""
    root_correction2: float
    """``sqrt(1 - beta2 ** step)``: divides sqrt(v)."""
    eps: float
    step_size: float
    """``lr / (1 - beta1 ** step)``."""


def adamw_coefficients(
    *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int
) -> AdamWCoefficients:
    """Return the coefficients of step ``step`` (counted from 1)."""
    return AdamWCoefficients(
        decay=1.0 - lr * weight_decay,
        blend1=1.0 - beta1,
        beta2=beta2,
        blend2=1.0 - beta2,
        root_correction2=math.sqrt(1.0 - beta2**step),
        eps=eps,
        step_size=lr / (1.0 - beta1**step),
    )
