"""Overlap: sharded data-parallel training whose communication is planned, visible and hidden under compute.

The names below load the engine, with DTensor and FSDP, when one is first asked for: ``overlap.ops`` does without.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from overlap.config import ShardOptions
from overlap.errors import ConfigError, DesyncError, OverlapError, StateError

if TYPE_CHECKING:
    from overlap.engine.api import fully_shard, shard
    from overlap.engine.call import register_forward_method
    from overlap.engine.engine import Engine
    from overlap.engine.module import ShardedModule
    from overlap.engine.nonfinite import nonfinite_gradients
    from overlap.engine.registry import engine_of
    from overlap.engine.summon import summon_full_params
    from overlap.optim.adamw import AdamW
    from overlap.optim.clip import clip_grad_norm_, grad_norm
    from overlap.optim.loss_scale import LossScaler
    from overlap.optim.muon import Muon

__version__ = "0.1.0"

__all__ = [
    "AdamW",
    "ConfigError",
    "DesyncError",
    "Engine",
    "LossScaler",
    "Muon",
    "OverlapError",
    "ShardOptions",
    "ShardedModule",
    "StateError",
    "clip_grad_norm_",
    "engine_of",
    "fully_shard",
    "grad_norm",
    "nonfinite_gradients",
    "register_forward_method",
    "shard",
    "summon_full_params",
]

_HOMES = {
    "AdamW": "optim.adamw",
    "Engine": "engine.engine",
    "LossScaler": "optim.loss_scale",
    "Muon": "optim.muon",
    "ShardedModule": "engine.module",
    "clip_grad_norm_": "optim.clip",
    "engine_of": "engine.registry",
    "fully_shard": "engine.api",
    "grad_norm": "optim.clip",
    "nonfinite_gradients": "engine.nonfinite",
    "register_forward_method": "engine.call",
    "shard": "engine.api",
    "summon_full_params": "engine.summon",
}


class _Package(ModuleType):
    """The subpackage ``overlap.shard`` yields its place in this module to the function of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Do not let the import of a subpackage hide a public name."""
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"overlap.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
