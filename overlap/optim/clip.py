"""Norm and clipping for any optimizer. ``overlap.AdamW(max_grad_norm=...)`` clips inside its update, without a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from overlap import _compat
from overlap.errors import ConfigError, StateError, message
from overlap.optim.members import Found, Members
from overlap.optim.nonfinite import first_nonfinite
from overlap.optim.norm import GradientNorm, NormOrder, global_norm
from overlap.shard.flat import home_of
from overlap.shard.param import REPLACED_MARK

# As torch.nn.utils.clip_grad_norm_: keeps the coefficient finite for a zero norm.
CLIP_EPS = 1e-6

_MEMBERS_MARK = "_overlap_clipped"  # on a public parameter: which ones were clipped with it


@_compat.uncompiled
@torch.no_grad()
def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their global norm is at most ``max_norm``. A collective.

    A norm that is NaN or Inf leaves the gradients as they are, for ``overlap.nonfinite_gradients`` to find: skip the
    update then, say with ``overlap.AdamW.step(skip=~norm.isfinite())``.

    Args:
        parameters: one or several. Public parameters of one sharded model, and plain parameters outside of it: their
            gradients must be equal on all ranks, and count once.
        max_norm: above 0.
        norm_type: p of the p-norm, above 0; ``inf`` is the largest magnitude.
        error_if_nonfinite: raise where the norm is NaN or Inf; reads it on the host, which waits for the device.
        foreach: taken for torch's sake; flats are clipped at once anyway.

    Returns:
        fp32 scalar: the norm before clipping. Afterwards it is ``norm * min(1, max_norm / (norm + 1e-6))``.

    Raises:
        ConfigError: ``max_norm`` or ``norm_type`` is not above 0, or a parameter is another engine's DTensor.
        StateError: non-finite norm with ``error_if_nonfinite``, or a parameter that sharding has replaced; gradients
            are left as they are.

    Source: ``torch.nn.utils.clip_grad_norm_``.
    """
    check_max_norm(max_norm)
    parameters = _listed(parameters)
    norm, gradients = _measured(parameters, norm_type)
    if error_if_nonfinite:
        refuse_nonfinite(norm, parameters)
    _scale(gradients, clip_coefficient(norm, float(max_norm)))
    return norm.values[0].float()


@_compat.uncompiled
@torch.no_grad()
def grad_norm(parameters: Iterable[Tensor] | Tensor, norm_type: float = 2.0) -> Tensor:
    """Global norm of all gradients, as ``clip_grad_norm_`` finds it, without clipping. A collective.

    Args:
        parameters: as ``clip_grad_norm_`` takes them.
        norm_type: p of the p-norm, above 0; ``inf`` is the largest magnitude.

    Returns:
        fp32 scalar on the gradients' device.

    Raises:
        ConfigError: ``norm_type`` is not above 0, or a parameter is another engine's DTensor.
        StateError: a parameter that sharding has replaced.
    """
    norm, _ = _measured(_listed(parameters), norm_type)
    return norm.values[0].float()


def _measured(parameters: list[Tensor], norm_type: float) -> tuple[GradientNorm, list[Tensor]]:
    """The norm, and the gradients that it is of."""
    order = NormOrder(float(norm_type))
    if not order.p > 0:
        raise ConfigError(message("norm_type", "be above 0", norm_type, "pass 2.0, or float('inf')"))
    found = _found(parameters)
    for param in found.others:
        _check_plain(param)
    chosen = [share.with_gradient() for share in found.shares]
    plain = [param.grad for param in found.others if param.grad is not None]
    if not chosen and not plain:
        return GradientNorm(torch.zeros(2, dtype=torch.float64), ()), []
    return global_norm(chosen, plain, order), [part for share in chosen for part in share.gradients()] + plain


def _listed(parameters: Iterable[Tensor] | Tensor) -> list[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _found(parameters: list[Tensor]) -> Found:
    """What is sharded, by flat, and what is not; remembered with the first one, if that is sharded."""
    members = Members()
    if parameters and home_of(parameters[0]) is not None:
        members = parameters[0].__dict__.setdefault(_MEMBERS_MARK, members)
    return members.find(parameters)


def _scale(gradients: list[Tensor], coefficient: Tensor) -> None:
    """Multiply all of them by one number, in place; on CUDA in one launch for those that are alike."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, dtype), same in alike.items():
        _compat.multiply_each(same, coefficient.to(device, dtype).squeeze(0))


def _check_plain(param: Tensor) -> None:
    shape = f"of shape {tuple(param.shape)}"
    if REPLACED_MARK in param.__dict__:
        got, cure = f"one {shape} that sharding has replaced", "take it from model.parameters() after sharding"
        raise StateError(message("parameter", "belong to the model as it is now", got, cure))
    if isinstance(param, DTensor):
        got, cure = f"another DTensor {shape}", "clip it with torch.nn.utils.clip_grad_norm_"
        raise ConfigError(message("parameter", "be sharded by overlap, or plain", got, cure))


def clip_coefficient(norm: GradientNorm, max_norm: float) -> Tensor:
    """``min(1, max_norm / (norm + eps))`` as fp32 ``[1]``, on the device; 1 where the norm is not finite.

    Else it would be 0, and 0 * Inf is NaN. Source: torch.nn.utils.clip_grad_norm_.
    """
    coefficient = (max_norm / (norm.norm + CLIP_EPS)).clamp(max=1.0)
    return coefficient.masked_fill(norm.bad > 0, 1.0).float()


def refuse_nonfinite(norm: GradientNorm, parameters: list[Tensor], when: Callable[[], str] = str) -> None:
    """Read the norm on the host; all ranks raise, or none.

    Args:
        norm: to be read.
        parameters: whose norm it is.
        when: gives words for the message.

    Raises:
        StateError: it is NaN or Inf; names the first gradient that is.
    """
    value, bad = norm.values.tolist()
    if bad:
        got = f"{value}{when()}, first in {first_nonfinite(parameters)}"
        raise StateError(message("gradient norm", "be finite", got, "lower the learning rate or skip the step"))


def check_max_norm(max_norm: float, name: str = "max_norm") -> None:
    """Refuse what cannot be a norm."""
    if not max_norm > 0:
        raise ConfigError(message(name, "be above 0", max_norm, "leave it out to not clip"))
