"""Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).

Its output depends on counter and key alone, so an element gets the same random bits on any face, in any shard,
on any thread. Words are int64 tensors that hold 32 bits: products wrap, and masking keeps what is meant.
"""

import torch
from torch import Tensor

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
MASK = 0xFFFFFFFF

MASTER, FIRST, SECOND = 0, 1, 2
"""Streams: the weights, the first state of the optimizer, its second state."""


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four words of 32 random bits for each counter; the key is ``seed`` (64 bits)."""
    c0, c1, c2, c3 = counter
    key0, key1 = seed & MASK, seed >> 32 & MASK
    for _ in range(ROUNDS):
        product0, product1 = c0 * M0, c2 * M1
        c0, c2 = (product1 >> 32 & MASK) ^ c1 ^ key0, (product0 >> 32 & MASK) ^ c3 ^ key1
        c1, c3 = product1 & MASK, product0 & MASK
        key0, key1 = key0 + W0 & MASK, key1 + W1 & MASK
    return c0, c1, c2, c3


def random_bits(size: int, device: torch.device, *, seed: int, start: int, step: int, stream: int) -> Tensor:
    """Return 16 random bits for each of the elements ``[start, start + size)``, as int32.

    Eight elements share a counter: their global index divided by 8, the step and the stream. ``start`` is a
    multiple of 8.
    """
    group = torch.arange(start >> 3, (start + size + 7) >> 3, device=device)
    fixed = (torch.full_like(group, step & MASK), torch.full_like(group, stream))
    words = torch.stack(philox((group & MASK, group >> 32, *fixed), seed), dim=1)
    halves = torch.stack((words & 0xFFFF, words >> 16), dim=2)
    return halves.view(-1)[:size].int()
