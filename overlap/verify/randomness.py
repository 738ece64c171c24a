"""Both models draw the same random numbers: the states of torch's, Python's and NumPy's generators, kept and set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class GeneratorStates(NamedTuple):
    """All global generators at one time."""

    cpu: Tensor
    cuda: list[Tensor]
    python: tuple[Any, ...]
    numpy: Any

    @classmethod
    def now(cls) -> GeneratorStates:
        """As they are; CUDA's only where it is in use."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        return cls(torch.get_rng_state(), cuda, random.getstate(), np.random.get_state())

    def restore(self) -> None:
        """Go back to that time."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


def seed_all(seed: int) -> None:
    """Start all generators from ``seed``."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start all generators from ``seed`` inside; afterwards they go on as if nothing had been drawn."""
    before = GeneratorStates.now()
    seed_all(seed)
    try:
        yield
    finally:
        before.restore()
