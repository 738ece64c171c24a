"""What a model of the zoo is: how to build it, which modules are its units, and its loss on any rank's batch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS = 16, 3
SMALL = 64
"""For ``replicate_max_numel``: norms and biases are replicated, matrices are not."""

Recompute = Literal["none", "non-reentrant", "reentrant"]
RECOMPUTES: tuple[Recompute, ...] = ("none", "non-reentrant", "reentrant")


class Unit(nn.Module):
    """Base of modules that become units."""


class ZooModel(nn.Module):
    """Base of all models: calls its units through ``run``, which recomputes them on request."""

    recompute: Recompute = "none"

    def run(self, unit: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call a unit, with activation checkpointing if the model was told so."""
        reentrant = self.recompute == "reentrant"
        # Reentrant checkpointing trains nothing inside when no input wants a gradient: torch's own rule.
        reachable = not reentrant or any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        if self.recompute == "none" or not torch.is_grad_enabled() or not reachable:
            return unit(*args, **kwargs)
        return checkpoint(unit, *args, use_reentrant=reentrant, **({} if reentrant else kwargs))


Loss = Callable[[nn.Module, int, int], Tensor]
"""Loss of a model on the batch that a rank has at an index; any process can compute any rank's."""


@dataclass(frozen=True)
class Entry:
    """One model of the zoo.

    Attributes:
        name: in test ids.
        build: makes the model; called with the same seed everywhere.
        loss: of the model on what a rank has.
        unit: rule that selects its units.
        options: of the engine, beside stage and dtype.
        dtypes: that its own operators can compute in.
        recomputes: ways of checkpointing that torch itself allows for it.
        reuses: whether a weight is used more than once in a forward: in bf16 its gradients then add up in bf16.
    """

    name: str
    build: Callable[[], ZooModel]
    loss: Loss
    unit: type[nn.Module] | str = Unit
    options: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    recomputes: tuple[Recompute, ...] = RECOMPUTES
    reuses: bool = False


def source(rank: int, index: int) -> torch.Generator:
    """Random numbers of one batch."""
    return torch.Generator().manual_seed(1000 * index + rank)


def rows(rank: int, index: int, *shape: int) -> Tensor:
    """A batch of fp32 features; ``[ROWS, WIDTH]`` unless told otherwise."""
    return torch.randn(*(shape or (ROWS, WIDTH)), generator=source(rank, index))


def squares(output: Tensor) -> Tensor:
    """A loss whose gradient differs from element to element."""
    return (output.float() - 0.5).square().mean()
