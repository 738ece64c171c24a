"""How far two models may be apart, from the precision that they compute in.

    forward, loss, gradients, buffers   atol + rtol * largest value of the tensor
    parameters                          atol + rtol_weight * largest value + rtol * how far it has moved in training
    integers, masks, initial values     nothing

The weights themselves are fp32 whatever the compute dtype, and only what was learned carries its rounding: without the
split, bf16 would excuse an error of a percent in every weight.
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
    """Relative, of parameters; ``gradient`` of the distance moved since the start comes on top."""
    atol: float = ATOL
    """Absolute, added to each of them."""

    def of_forward(self, scale: float) -> float:
        """Allowed error of a tensor of forward whose largest value is ``scale``."""
        return self.atol + self.forward * scale

    def of_gradient(self, scale: float) -> float:
        """Allowed error of a gradient whose largest value is ``scale``."""
        return self.atol + self.gradient * scale

    def of_weight(self, scale: float, moved: float) -> float:
        """Allowed error of a parameter with largest value ``scale`` of which an element has moved by ``moved``."""
        return self.atol + self.weight * scale + self.gradient * moved


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
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise ConfigError(message(name, "be at least 0", value, "give the largest error that is right"))
    compute = [options.param_dtype] if options.param_dtype else [*dtypes]
    forward = max(map(rtol_of, compute), default=RTOL)
    gradient = max(forward, rtol_of(options.reduce_dtype), rtol_of(options.grad_dtype))
    if rtol is not None:
        return Tolerance(forward=rtol, gradient=rtol, weight=rtol, atol=ATOL if atol is None else atol)
    return Tolerance(forward=forward, gradient=gradient, atol=ATOL if atol is None else atol)


def rtol_of(dtype: torch.dtype) -> float:
    """Relative tolerance of what is computed in a floating dtype."""
    return max(RTOL, ROUNDINGS * torch.finfo(dtype).eps) if dtype.itemsize < 4 else RTOL
