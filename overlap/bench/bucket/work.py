"""What compute does beside communication: products of square matrices."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

Share = Callable[[], None] | None
"""Compute before one bucket; None where there is nothing to do."""


class Products:
    """Matrix products.

    Args:
        side: of the matrices.
        device: of the matrices.
    """

    def __init__(self, side: int, device: torch.device) -> None:
        self._left, self._right, self._product = (torch.ones(side, side, device=device) for _ in range(3))

    def run(self, times: int) -> None:
        """Multiply so many times."""
        for _ in range(times):
            torch.mm(self._left, self._right, out=self._product)

    def shares(self, buckets: int, times: int) -> list[Share]:
        """So many products before so many buckets, as even as they come."""
        ends = [times * number // buckets for number in range(buckets + 1)]
        return [self._share(end - begin) for begin, end in pairwise(ends)]

    def _share(self, times: int) -> Share:
        return (lambda: self.run(times)) if times else None
