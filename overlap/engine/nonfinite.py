"""Where a NaN or an Inf came from, by parameter, unit and rank."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from overlap.engine.registry import is_unit, unit_of
from overlap.optim.nonfinite import find_nonfinite


class NonfiniteGradient(NamedTuple):
    """A parameter whose gradient has a NaN or an Inf."""

    parameter: str
    """Fully qualified name."""
    unit: str
    """Name of its unit, "" for the outermost; of a parameter outside of the sharded model also ""."""
    ranks: tuple[int, ...]
    """Ranks, of those that share one copy of the model, whose rows have it."""


def nonfinite_gradients(module: nn.Module) -> list[NonfiniteGradient]:
    """Parameters whose gradients are not finite, in the order in which backward met them. A collective.

    The first entry is where to look: it lies nearest to the loss, and the others may have inherited their Inf from it.
    Call it between backward and ``zero_grad()``, also after a step that was skipped. Waits for the device.

    Args:
        module: the sharded model, or a module around it.
    """
    units = [unit_of(inner) for inner in module.modules() if is_unit(inner)]
    unit_names = {param.public: unit.name for unit in units for param in unit.params}
    params = dict(module.named_parameters())
    return [
        NonfiniteGradient(name, unit_names.get(params[name], ""), ranks)
        for name, ranks in find_nonfinite(list(params.items()))
    ]
