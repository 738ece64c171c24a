"""One scale per block of consecutive elements."""

import torch
from torch import Tensor
from torch.nn.functional import pad

SMALLEST = 2.0**-126
"""The least scale, the smallest normal fp32: a block of zeros divides by it, and no quotient overflows."""


def scale_of(values: Tensor, block: int, largest: float) -> Tensor:
    """Return ``max |x| / largest`` of each block of fp32 ``values``; NaN where a block is not finite."""
    padding = -values.numel() % block
    blocks = pad(values.abs(), (0, padding)).view((values.numel() + padding) // block, block)
    most = blocks.amax(dim=1)  # NaN propagates
    scale = (most / torch.full_like(most, largest)).clamp(min=SMALLEST)
    return torch.where(most.isfinite(), scale, torch.nan)


def per_element(scales: Tensor, like: Tensor, block: int) -> Tensor:
    """Return each element's scale."""
    return scales.repeat_interleave(block)[: like.numel()]
