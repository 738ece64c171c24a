"""How many sequences make compute about as long as the wire."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SMALL, LARGE = 2, 6
TRIES = 4


def balanced_batch(step: Callable[[int], object], wire_s: float) -> int:
    """Return the sequences per rank for which a step of the floor takes about ``wire_s``; the same on all ranks.

    A line through two batch sizes, both timed while all ranks compute.
    """
    small, large = (_seconds(step, batch) for batch in (SMALL, LARGE))
    per_sequence = max((large - small) / (LARGE - SMALL), 1e-6)
    batch = torch.tensor(SMALL + (wire_s - small) / per_sequence, dtype=torch.float64)
    dist.all_reduce(batch)
    return max(1, round(batch.item() / dist.get_world_size()))


def _seconds(step: Callable[[int], object], batch: int) -> float:
    step(batch)
    times = []
    for _ in range(TRIES):
        dist.barrier()
        start = time.perf_counter()
        step(batch)
        times.append(time.perf_counter() - start)
    return min(times)  # what else the machine does only adds
