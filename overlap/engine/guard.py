"""Global optimizer hooks: an optimizer built before sharding holds parameters that nobody trains any more."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from overlap.engine.adamw import AdamW
from overlap.errors import StateError, message
from overlap.shard.flat import home_of
from overlap.shard.param import NEVER, REPLACED_MARK


@cache
def install() -> None:
    """Watch every optimizer's step, once per process; before the first parameter is replaced is early enough."""
    register_optimizer_step_pre_hook(_refuse_replaced)
    register_optimizer_step_post_hook(_note_update)


def _refuse_replaced(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
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


def _note_update(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Foreign optimizers may write through ``.data``, which no version counter sees; ours keeps shards up to date."""
    if isinstance(optimizer, AdamW):
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            home = home_of(param)
            if home is not None:
                home.param.seen_version = NEVER
