"""The losses that everybody should have: one process that trains on all ranks' batches."""

import math
from collections.abc import Sequence

from overlap.bench.step.contenders.alone import alone
from overlap.bench.step.workload import Workload


def reference_losses(workload: Workload, steps: int, per_rank: int) -> list[float]:
    """Train the floor's model on the whole batch of each step."""
    contender = alone(workload)
    return [contender.step(*workload.whole_batch(step, per_rank)).item() for step in range(steps)]


def loss_error(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Return the largest relative difference over the steps; infinite where a loss is no number."""
    errors = [abs(mine - theirs) / abs(theirs) for mine, theirs in zip(losses, reference, strict=True)]
    return max((error if math.isfinite(error) else math.inf for error in errors), default=0.0)
