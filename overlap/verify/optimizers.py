"""The same optimizer for both models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import nn

from overlap.errors import ConfigError, message
from overlap.optim.adamw import AdamW

Factory = Callable[..., torch.optim.Optimizer]
"""Called with the parameters of one model."""

NAMED: Mapping[str, Factory] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": partial(AdamW, lr=1e-3),
}
"""``adamw`` is the fused one for the sharded model, torch's for the twin."""


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step of one model."""

    optimizer: torch.optim.Optimizer
    max_norm: float | None = None
    """Clips the global norm first, for an optimizer that does not clip itself."""

    def __call__(self) -> None:
        """Clip, step, forget gradients."""
        if self.max_norm is not None:
            params = [param for group in self.optimizer.param_groups for param in group["params"]]
            torch.nn.utils.clip_grad_norm_(params, self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()


def factory_of(optimizer: str | Factory, lr: float | None) -> Factory:
    """Resolve what the user chose.

    Args:
        optimizer: a name, or a function of parameters.
        lr: for the named ones; None keeps their default.

    Raises:
        ConfigError: an unknown name, or a learning rate where none is taken.
    """
    if callable(optimizer):
        if lr is not None:
            cure = "give it its learning rate there"
            raise ConfigError(message("lr", "be left out with an optimizer factory", lr, cure))
        return optimizer
    if optimizer not in NAMED:
        near = get_close_matches(str(optimizer), NAMED, n=1)
        cure = f"did you mean {near[0]}?" if near else "pass a name, or a function of the parameters"
        raise ConfigError(message("optimizer", f"be one of {', '.join(NAMED)} or a function", optimizer, cure))
    return NAMED[optimizer] if lr is None else partial(NAMED[optimizer], lr=lr)


def build_updates(make: Factory, sharded: nn.Module, masters: Mapping[str, nn.Parameter]) -> tuple[Update, Update]:
    """Build the sharded model's optimizer and the twin's.

    Args:
        make: called with each model's parameters; where it makes an ``overlap.AdamW``, which takes sharded parameters
            only, the twin gets a ``torch.optim.AdamW`` with the same groups.
        sharded: the sharded model.
        masters: parameters of the twin, by name.
    """
    mine = make(sharded.parameters())
    if not isinstance(mine, torch.optim.Optimizer):
        got, cure = type(mine).__name__, "let it return the optimizer"
        raise ConfigError(message("optimizer(parameters)", "return a torch.optim.Optimizer", got, cure))
    if isinstance(mine, AdamW):
        names = {param: name for name, param in sharded.named_parameters()}
        groups = [_mirrored(group, [masters[names[param]] for param in group["params"]]) for group in mine.param_groups]
        return Update(mine), Update(torch.optim.AdamW(groups), mine.max_grad_norm)
    return Update(mine), Update(make(masters.values()))


def _mirrored(group: dict[str, Any], params: list[nn.Parameter]) -> dict[str, Any]:
    kept = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay", "maximize")}
    return {"params": params, **kept}
