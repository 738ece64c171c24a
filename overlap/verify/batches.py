"""Which batch a rank gets in a step, and copies of it that a model may change."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from overlap.engine.tree import map_tensors
from overlap.errors import ConfigError, message

DEFAULT_STEPS = 4
"""The first records the order of units, the second follows it with updated weights; two more for what builds up."""

Batches = Callable[[int, int], Any] | Iterable[Any]
"""``batches(rank, step)``, steps from 0; or batches that the ranks take turns with: rank r's of step s is number
``s * ranks + r``."""


@dataclass(frozen=True, slots=True)
class RankBatches:
    """One rank's share."""

    steps: int
    of: Callable[[int], Any]
    """Step, from 0 -> batch."""


def share(batches: Batches, steps: int | None, rank: int, world: int) -> RankBatches:
    """Take one rank's share.

    Args:
        batches: of all ranks.
        steps: None takes what a sequence gives, else ``DEFAULT_STEPS``.
        rank: whose share.
        world: ranks.

    Raises:
        ConfigError: not batches, fewer than steps and ranks need, or no step at all.
    """
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise ConfigError(message("steps", "be an integer of at least 1", steps, "give more"))
    if callable(batches):
        return RankBatches(steps or DEFAULT_STEPS, _bound(batches, rank))
    if isinstance(batches, str | bytes | dict) or not isinstance(batches, Iterable | Tensor):
        rule = "be a function of rank and step, or a sequence of batches"
        raise ConfigError(message("batches", rule, type(batches).__name__, "pass one of these"))
    if steps is None:
        steps = max(1, len(batches) // world) if isinstance(batches, Sequence | Tensor) else DEFAULT_STEPS
    mine = list(islice(batches, rank, steps * world, world))
    if len(mine) < steps:
        rule = f"give one for each of {world} ranks in each of {steps} steps, {steps * world} in all"
        got = f"{len(batches)}" if isinstance(batches, Sequence | Tensor) else "fewer"
        raise ConfigError(message("batches", rule, got, "give more batches, or fewer steps or ranks"))
    return RankBatches(steps, mine.__getitem__)


def _bound(batches: Callable[[int, int], Any], rank: int) -> Callable[[int], Any]:
    try:
        inspect.signature(batches).bind(rank, 0)
    except TypeError as error:
        cure = "define batches(rank, step)"
        raise ConfigError(message("batches", "be callable with a rank and a step", str(error), cure)) from None
    except ValueError:  # a builtin without a signature: calling it will tell
        pass
    return lambda step: batches(rank, step)


def fresh(batch: Any, device: torch.device) -> Any:
    """The same batch in memory of its own on ``device``: what one model does to its inputs must not reach the other."""
    return map_tensors(batch, lambda tensor: _copy(tensor, device))


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device, copy=True).requires_grad_(tensor.requires_grad)
