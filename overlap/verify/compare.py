"""Two tensors that should be one: how far they are apart, and where most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Rule = Callable[[float], float]
"""Largest value of the expected tensor -> largest error that passes."""

SAME_FACTOR = 1e-3
"""Elements of which each is the expected one times the same factor may stray this far from it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What separates two tensors; the figures are None where they have no common shape or dtype."""

    max_abs: float | None
    max_rel: float | None
    """``max_abs`` over the largest absolute value expected."""
    allowed: float | None
    detail: str


def difference(got: Tensor, expected: Tensor, rule: Rule) -> Difference | None:
    """Compare two tensors; None if they agree.

    Args:
        got: of the sharded model.
        expected: of the unsharded one. NaN agrees with NaN, infinity with the same infinity.
        rule: what may separate floating values; others must be equal.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return Difference(None, None, None, f"{_kind(got)} where the unsharded model has {_kind(expected)}")
    if expected.numel() == 0 or torch.equal(got, expected):
        return None
    mine, theirs = _wide(got), _wide(expected)
    error = _error(mine, theirs)
    scale, worst = largest(theirs), error.max().item()
    allowed = rule(scale) if expected.is_floating_point() or expected.is_complex() else 0.0
    if worst <= allowed:
        return None
    return Difference(worst, worst / scale if scale else math.inf, allowed, _describe(mine, theirs, error))


def largest(tensor: Tensor) -> float:
    """Largest absolute value that is finite; 0 if there is none."""
    finite = tensor.detach().abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(finite.max()) if finite.numel() else 0.0


def all_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite."""
    return bool(torch.isfinite(tensor).all())


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def _error(mine: Tensor, theirs: Tensor) -> Tensor:
    same = mine.eq(theirs) | (mine.isnan() & theirs.isnan())
    error = (mine - theirs).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    return error.masked_fill(same, 0.0)


def _describe(mine: Tensor, theirs: Tensor, error: Tensor) -> str:
    flat = int(error.argmax())
    place = ", ".join(str(int(index)) for index in torch.unravel_index(torch.tensor(flat), error.shape))
    values = f"{mine.flatten()[flat].item():.8g} instead of {theirs.flatten()[flat].item():.8g}"
    text = f"{values} at [{place}]"
    factor = _common_factor(mine, theirs)
    return text if factor is None else f"{text}; every element is {factor:.4g} times the expected one"


def _common_factor(mine: Tensor, theirs: Tensor) -> float | None:
    """The factor by which all elements differ, if it is one: a wrong division shows as such."""
    square = theirs.square().sum().item()
    if not (0 < square < math.inf) or theirs.numel() < 2:
        return None
    factor = (mine * theirs).sum().item() / square
    stray = (mine - factor * theirs).abs().max().item()
    plain = factor == 0.0 or not math.isfinite(factor) or math.isclose(factor, 1.0, rel_tol=SAME_FACTOR)
    return None if plain or stray > SAME_FACTOR * largest(mine) else factor


def _kind(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
