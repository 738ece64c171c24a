"""How well the model predicts text it never saw, in bits per byte. All ranks take part."""

import math

import torch
import torch.distributed as dist
from torch import nn

from overlap.demo.data import Corpus, rank_slice

WINDOWS = 48


def bits_per_byte(model: nn.Module, corpus: Corpus, *, context: int, device: torch.device) -> float:
    """Measure on the same held-out windows whenever asked; every rank runs an equal share of them."""
    ranks = dist.get_world_size()
    rows = corpus.heldout_windows(math.ceil(WINDOWS / ranks) * ranks, context)
    inputs, targets = rank_slice(rows, dist.get_rank(), ranks)
    with torch.no_grad():
        loss: torch.Tensor = model(inputs.to(device), targets.to(device))
    return sum(across_ranks(loss)) / ranks / math.log(2)


def across_ranks(value: torch.Tensor) -> list[float]:
    """Collect one number from every rank, on every rank, in rank order."""
    values = value.new_zeros(dist.get_world_size(), dtype=torch.float32)
    values[dist.get_rank()] = value.detach()
    dist.all_reduce(values)
    return values.tolist()
