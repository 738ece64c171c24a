"""What the optimizer updates share: the gradient as they see it, and how a new state is stored."""

from typing import NamedTuple

import torch
from torch import Tensor

from overlap.ops.reference.philox import random_bits
from overlap.ops.reference.rounding import stochastic_bf16


class Rounding(NamedTuple):
    """What decides the random bits of one update; without a seed, bf16 rounds to nearest even."""

    seed: int | None
    start: int
    step: int

    def bits(self, like: Tensor, stream: int) -> Tensor:
        """Return 16 random bits per element of ``like``."""
        assert self.seed is not None
        return random_bits(like.numel(), like.device, seed=self.seed, start=self.start, step=self.step, stream=stream)


def gradient(grad: Tensor, grad_scale: Tensor | None, maximize: bool) -> Tensor:
    """Return the gradient in fp32, scaled, and negated where the step ascends."""
    g = grad.float()
    if grad_scale is not None:
        g = g * grad_scale.reshape(())
    return -g if maximize else g


def narrow(new: Tensor, dtype: torch.dtype, rounding: Rounding, stream: int) -> Tensor:
    """Return fp32 ``new`` in the ``dtype`` of the state that it replaces."""
    if dtype == torch.bfloat16 and rounding.seed is not None:
        return stochastic_bf16(new, rounding.bits(new, stream))
    return new.to(dtype)


def store(state: Tensor | None, new: Tensor, skip: Tensor | None) -> None:
    """Overwrite ``state``, or leave its bits as they are where ``skip`` is not 0 (NaN is not 0)."""
    if state is not None:
        state.copy_(new if skip is None else torch.where(skip.reshape(()) != 0, state, new.to(state.dtype)))
