"""The scalars of one optimizer step, computed on the host in float64 and rounded once to float32 by each face.

Nothing in them changes a compiled kernel. Cached, by type too (a step of 1.0 or True is no step): all flats of a step
share them, and one check.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from overlap.ops.scalars import check_decay, check_finite, check_step


class AdamWCoefficients(NamedTuple):
    """What the loop of ``adamw`` and ``adamw_8bit`` needs."""

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


class SGDCoefficients(NamedTuple):
    """What the loop of ``sgd_momentum`` needs."""

    weight_decay: float
    """Multiplies the weight, added to the gradient (coupled decay)."""
    keep: float
    """Multiplies the momentum: 0 on the first step, then ``momentum``."""
    blend: float
    """Multiplies the gradient: 1 on the first step, then ``1 - dampening``."""
    look_ahead: float
    """``momentum``: what ``nesterov`` adds of the new momentum to the gradient."""
    lr: float


class LionCoefficients(NamedTuple):
    """What the loop of ``lion`` needs."""

    decay: float
    """``1 - lr * weight_decay``."""
    beta1: float
    blend1: float
    """``1 - beta1``: the gradient's part in the direction."""
    beta2: float
    blend2: float
    """``1 - beta2``: the gradient's part in the average that is kept."""
    lr: float


@lru_cache(maxsize=64, typed=True)
def adamw_coefficients(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int
) -> AdamWCoefficients:
    """Return the coefficients of step ``step`` (counted from 1).

    Raises:
        ConfigError: a step or a beta that makes a bias correction 0, or a number that is negative or not finite.
    """
    check_step(step)
    _check_decays(beta1=beta1, beta2=beta2)
    _check_sizes(lr=lr, eps=eps, weight_decay=weight_decay)
    return AdamWCoefficients(
        1.0 - lr * weight_decay,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        math.sqrt(1.0 - beta2**step),
        eps,
        lr / (1.0 - beta1**step),
    )


@lru_cache(maxsize=64, typed=True)
def sgd_coefficients(lr: float, momentum: float, dampening: float, weight_decay: float, step: int) -> SGDCoefficients:
    """Return the coefficients of step ``step`` (counted from 1).

    Raises:
        ConfigError: a step below 1, or a number that is negative (``dampening`` may be) or not finite.
    """
    check_step(step)
    _check_sizes(lr=lr, momentum=momentum, weight_decay=weight_decay)
    check_finite("dampening", dampening)
    if step == 1:
        return SGDCoefficients(weight_decay, 0.0, 1.0, momentum, lr)
    return SGDCoefficients(weight_decay, momentum, 1.0 - dampening, momentum, lr)


@lru_cache(maxsize=64, typed=True)
def lion_coefficients(lr: float, beta1: float, beta2: float, weight_decay: float, step: int) -> LionCoefficients:
    """Return the coefficients of any step; ``step`` only takes part in the random bits.

    Raises:
        ConfigError: a step below 1, a beta outside of [0, 1), or a number that is negative or not finite.
    """
    check_step(step)
    _check_decays(beta1=beta1, beta2=beta2)
    _check_sizes(lr=lr, weight_decay=weight_decay)
    return LionCoefficients(1.0 - lr * weight_decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2, lr)


def _check_decays(**betas: float) -> None:
    for name, beta in betas.items():
        check_decay(name, beta)


def _check_sizes(**sizes: float) -> None:
    for name, size in sizes.items():
        check_finite(name, size, 0.0)
