"""What torch's own training tools must know of sharded parameters: hooks into every optimizer, and ``GradScaler``.

An optimizer built before sharding holds parameters that nobody trains any more; one may need its parameters whole; one
that writes past version counters must be believed to have written; one that is asked for its state must not have
trained afterwards; and a ``torch.amp.GradScaler`` must find the same on all ranks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from overlap import _compat
from overlap.errors import ConfigError, StateError, message
from overlap.optim.flat_optimizer import FlatOptimizer
from overlap.optim.state import asked_by_torch
from overlap.shard.flat import home_of
from overlap.shard.param import REPLACED_MARK

_TRIAL = "_overlap_trial"  # on an optimizer, during a step that is none


@cache
def install() -> None:
    """Watch every optimizer's step, once per process; before the first parameter is replaced is early enough."""
    register_optimizer_step_pre_hook(_refuse_replaced)
    register_optimizer_step_pre_hook(_refuse_shape_bound)
    register_optimizer_step_pre_hook(_note_trial)
    register_optimizer_step_post_hook(_forget_trial)
    register_optimizer_step_post_hook(_note_update)
    _compat.check_finite_by_placement()


def _refuse_replaced(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(optimizer, FlatOptimizer):  # which takes no other parameters than those that replace them
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            if REPLACED_MARK in param.__dict__:
                raise StateError(
                    message(
                        f"optimizer {type(optimizer).__name__}",
                        "be built after the model was sharded",
                        f"a parameter of shape {tuple(param.shape)} that sharding has replaced",
                        "call overlap.shard(model) first, then build it from model.parameters()",
                    )
                )


def _refuse_shape_bound(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Adafactor keeps means of rows and columns, which torch's cannot take over ranks: it fails half way.

    ``torch.optim.Muon`` can, one matrix after another on all ranks.
    """
    if not isinstance(optimizer, torch.optim.Adafactor):
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            home = home_of(param)
            if home is not None and param.ndim > 1 and not home.flat.key.replicated:
                raise ConfigError(
                    message(
                        "optimizer Adafactor",
                        "have parameters of two dimensions or more whole",
                        f"{home.param.fqn!r} of shape {tuple(param.shape)}, sharded",
                        "use overlap.AdamW or overlap.Muon, or shard with stage=0",
                    )
                )


def _note_trial(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Helpers for state_dicts in torch step an optimizer that has no state, to see what state there would be."""
    optimizer.__dict__[_TRIAL] = not optimizer.state and asked_by_torch()


def _forget_trial(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Such a step has zero gradients and rate 0; what it leaves behind is its count, and so another bias correction."""
    if optimizer.__dict__.pop(_TRIAL, False) and any(home_of(param) is not None for param in optimizer.state):
        for state in optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"] * 0


def _note_update(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Foreign optimizers may write through ``.data``, which no version counter sees; ours keeps shards up to date."""
    if isinstance(optimizer, FlatOptimizer):
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            home = home_of(param)
            if home is not None:
                home.flat.mark_changed()
