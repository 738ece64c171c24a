"""How far two models may be apart, from the precision that they compute in.

    forward, loss, gradients, buffers   atol + rtol of the compute dtype * largest value of the tensor
    parameters                          atol + rtol of fp32 * largest value
    integers, masks, initial values     nothing

Each check starts from what the last one has found equal: once gradients agree, both optimizers get the same ones. So
weights, which are fp32 whatever the compute dtype, are held to fp32, and Adam cannot blow up the rounding of a gradient
that should be zero into a whole step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from overlap.config import ShardOptions
from overlap.errors import ConfigError, message

RTOL = 1e-5
"""fp32: 84 units in the last place, for sums of other order; on CPU both models usually agree to the bit."""
ROUNDINGS = 2
"""16-bit dtypes: this many units in the last place (bf16 1.6e-2, fp16 2.0e-3)."""
ATOL = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """Largest errors that pass; relative ones to the largest absolute value of the unsharded tensor."""

    forward: float = RTOL
    """Relative, of outputs and inputs of units, losses and buffers: from the compute dtype."""
    gradient: float = RTOL
    """Relative, of gradients: from the least precise of compute, wire and gradient dtype."""
    weight: float = RTOL
    """Relative, of parameters."""
    atol: float = ATOL
    """Absolute, added to each of them."""

    def of_forward(self, scale: float) -> float:
        """Allowed error of a tensor of forward whose largest value is ``scale``."""
        return self.atol + self.forward * scale

    def of_gradient(self, scale: float) -> float:
        """Allowed error of a gradient whose largest value is ``scale``."""
        return self.atol + self.gradient * scale

    def of_weight(self, scale: float) -> float:
        """Allowed error of a parameter whose largest value is ``scale``."""
        return self.atol + self.weight * scale


def nothing(scale: float) -> float:
    """Allowed error where both must agree to the bit."""
    return 0.0


def tolerance_for(
    options: ShardOptions, dtypes: Iterable[torch.dtype], rtol: float | None, atol: float | None
) -> Tolerance:
    """Work out the tolerance of a run.

    Args:
        options: of the engine.
        dtypes: of the model's floating parameters.
        rtol: the user's choice for everything relative; None takes the dtypes'.
        atol: likewise, absolute.

    Raises:
        ConfigError: a tolerance below 0.
    """
    check_chosen(rtol, atol)
    compute = [options.param_dtype] if options.param_dtype else [*dtypes]
    forward = max(map(rtol_of, compute), default=RTOL)
    gradient = max(forward, rtol_of(options.reduce_dtype), rtol_of(options.grad_dtype))
    if rtol is not None:
        return Tolerance(forward=rtol, gradient=rtol, weight=rtol, atol=ATOL if atol is None else atol)
    return Tolerance(forward=forward, gradient=gradient, atol=ATOL if atol is None else atol)


def check_chosen(rtol: float | None, atol: float | None) -> None:
    """Raise a ``ConfigError`` for a tolerance that cannot be."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise ConfigError(message(name, "be at least 0", value, "give the largest error that is right"))


def rtol_of(dtype: torch.dtype) -> float:
    """Relative tolerance of what is computed in a floating dtype."""
    return max(RTOL, ROUNDINGS * torch.finfo(dtype).eps) if dtype.itemsize < 4 else RTOL
