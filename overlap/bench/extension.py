"""What a call of the C++ extension itself costs: on empty tensors there is nothing to do but to read its arguments."""

from collections.abc import Callable
from functools import partial
from timeit import repeat

import torch

from overlap.bench.rows.adamw import COEFFICIENTS
from overlap.bench.rows.update import STEP

CALLS, BATCHES = 5000, 60
"""A batch is a few milliseconds, which other processes often leave alone; the best of many is the cost."""


def extension_cost(op: str) -> float | None:
    """Return the seconds of a call, the best batch's mean; None for an op whose call is not measured."""
    call = empty_calls().get(op)
    return None if call is None else min(repeat(call, number=CALLS, repeat=BATCHES)) / CALLS


def empty_calls() -> dict[str, Callable[[], bool]]:
    """Return calls on empty fp32 tensors by op; each says whether the extension took its arguments."""
    from overlap import _native  # not before it is asked for: the other faces do without it

    weights, first, second, grad, shard = (torch.zeros(0) for _ in range(5))
    norm, threads = torch.zeros(2, dtype=torch.float64), torch.get_num_threads()
    options = (COEFFICIENTS, None, None, False, None, 0, STEP)
    return {
        "adamw": partial(_native.adamw, weights, first, second, grad, shard, *options, threads),
        "reduce_sum": partial(_native.reduce_sum, [first, second], grad, 1.0, False, None, threads),
        "grad_norm": partial(_native.grad_norm, grad, norm, False, threads),
    }
