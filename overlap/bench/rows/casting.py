"""Peers of the updates: somebody's optimizer between the casts that a mixed-precision step needs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from overlap.bench import memory
from overlap.bench.case import Peer
from overlap.bench.rows.update import Shards

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def with_casts(
    name: str,
    make: MakeOptimizer,
    shards: Shards,
    averages: dict[str, Tensor],
    *,
    step: Any,
    dtype: torch.dtype = torch.float32,
) -> Peer:
    """Return an optimizer over weights of its own, a cast of the gradient before it and one of the weights after.

    Args:
        name: of the peer; says itself when there is something to cast.
        make: builds the optimizer for its parameters.
        shards: whose values it starts from and whose dtypes it works in.
        averages: the optimizer's state by its own names; cloned.
        step: its state's step count before this update; None where it keeps none.
        dtype: of its weights, averages and gradient.
    """
    weights = torch.nn.Parameter(memory.copy(shards.states[0], dtype))
    grad, cast_grad, grad_bytes = _cast(shards.grad, dtype)
    weights.grad = grad
    out, cast_weights, weight_bytes = _cast(weights.detach(), shards.weights.dtype)
    optimizer = make([weights])
    optimizer.state[weights] = {key: memory.copy(value, dtype) for key, value in averages.items()}
    if step is not None:
        optimizer.state[weights]["step"] = step

    def run() -> None:
        cast_grad()
        optimizer.step()
        cast_weights()

    moved = grad_bytes + (2 + 2 * len(averages)) * weights.nbytes + grad.nbytes + weight_bytes
    results = [out] if shards.shard is None else [weights.detach(), out]
    return Peer(f"{name} + casts" if grad_bytes or weight_bytes else name, run, moved, lambda: results)


def _cast(source: Tensor, dtype: torch.dtype) -> tuple[Tensor, Callable[[], object], int]:
    """Return where ``source`` is found in ``dtype``, how to bring it there, and the bytes that this moves."""
    if source.dtype == dtype:
        return source, lambda: None, 0
    target = memory.empty_like(source, dtype)
    return target, lambda: target.copy_(source), source.nbytes + target.nbytes
