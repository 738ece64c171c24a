"""Overlap: sharded data-parallel training whose communication is planned, visible and hidden under compute."""

from overlap.config import ShardOptions
from overlap.engine.adamw import AdamW
from overlap.engine.api import fully_shard, shard
from overlap.engine.engine import Engine
from overlap.engine.guard import install as _install_guard
from overlap.engine.module import ShardedModule, engine_of
from overlap.engine.norm import clip_grad_norm_
from overlap.errors import ConfigError, DesyncError, OverlapError, StateError

__version__ = "0.1.0"

__all__ = [
    "AdamW",
    "ConfigError",
    "DesyncError",
    "Engine",
    "OverlapError",
    "ShardOptions",
    "ShardedModule",
    "StateError",
    "clip_grad_norm_",
    "engine_of",
    "fully_shard",
    "shard",
]

_install_guard()
