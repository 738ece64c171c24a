"""What one step does with its gradients: scale them, clip them, or let them be. All of it stays on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overlap.errors import ConfigError, message
from overlap.optim.clip import clip_coefficient
from overlap.optim.norm import GradientNorm


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one step.

    Attributes:
        scale: fp32 ``[1]``, multiplies gradients; None for 1.
        skip: bool ``[1]``, true where nothing may change; None where nothing can make it so.
        norm: before clipping, of gradients with the loss scale taken out; None where nobody needs it.
        clipped: fp32 ``[1]``: the norm that the update sees.
    """

    scale: Tensor | None
    skip: Tensor | None
    norm: GradientNorm | None = None
    clipped: Tensor | None = None


def judge(norm: GradientNorm, scale: Tensor | None, skip: Tensor | None, max_norm: float | None) -> Verdict:
    """Decide on a step whose gradients were measured.

    Args:
        norm: of gradients as they are.
        scale: fp32 ``[1]`` that they are to be multiplied with.
        skip: bool ``[1]`` from the caller.
        max_norm: clip to it.
    """
    if scale is not None:
        norm = GradientNorm(torch.cat((norm.norm * scale, norm.bad)), norm.places)
    clipped = norm.norm
    if max_norm is not None:
        coefficient = clip_coefficient(norm, max_norm)
        clipped = clipped * coefficient
        scale = coefficient if scale is None else scale * coefficient
    bad = norm.bad > 0
    return Verdict(scale, bad if skip is None else bad | skip, norm, clipped.float())


def as_factor(value: Tensor | float | None, device: torch.device) -> Tensor | None:
    """A number to multiply with, as fp32 ``[1]``."""
    return None if value is None else _one("grad_scale", value, device).float()


def as_flag(value: Tensor | bool | None, device: torch.device) -> Tensor | None:
    """A yes or no as bool ``[1]``; NaN is yes."""
    return None if value is None else _one("skip", value, device) != 0


def _one(name: str, value: Tensor | float, device: torch.device) -> Tensor:
    tensor = torch.as_tensor(value, device=device)
    if tensor.numel() != 1:
        raise ConfigError(message(name, "be one number", f"shape {tuple(tensor.shape)}", "pass a scalar"))
    return tensor.reshape(1)


def product(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Of factors that may be 1, that is, not there."""
    if first is None or second is None:
        return second if first is None else first
    return first * second
