"""What a sharded module keeps: its unit, the outermost sharded module around it, and that one's engine."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from overlap.config import ShardOptions
from overlap.engine.engine import Engine
from overlap.engine.late import watch_registrations
from overlap.errors import ConfigError, StateError, message
from overlap.shard.unit import Unit

Sharded = nn.Module | FSDPModule

# Kept in a module's __dict__: nn.Module's attribute magic must not see them.
UNIT, ROOT, ENGINE, GROUP = "_overlap_unit", "_overlap_root", "_overlap_engine", "_overlap_group"

# A unit that leaves an option at its default follows the root, except for these: they already shaped its shards.
_SAME_EVERYWHERE = ("stage", "replicate_max_numel", "masters")
_OF_EACH_UNIT = ("param_dtype", "output_dtype", "cast_forward_inputs", "reshard_after_forward", "init", "init_fn")


def is_unit(module: nn.Module) -> bool:
    """Whether ``fully_shard`` has been applied to the module itself."""
    return UNIT in module.__dict__


def unit_of(module: Sharded) -> Unit:
    """The unit of a sharded module."""
    unit: Unit = module.__dict__[UNIT]
    return unit


def engine_of(module: nn.Module | FSDPModule) -> Engine:
    """The engine that runs a sharded module; made now if no forward has made it yet (a collective then).

    Raises:
        StateError: the module is not sharded.
        ConfigError: its units were sharded with options that must be the same everywhere.
    """
    if UNIT not in module.__dict__:
        raise StateError(
            message(
                "module",
                "be sharded",
                type(module).__name__,
                "call overlap.fully_shard or overlap.shard on it",
            )
        )
    root = module.__dict__[ROOT]()
    engine: Engine | None = root.__dict__.get(ENGINE)
    if engine is None:
        engine = root.__dict__[ENGINE] = _make_engine(root)
    return engine


def _make_engine(root: nn.Module) -> Engine:
    modules = [module for module in root.modules() if is_unit(module)]
    units = [unit_of(module) for module in modules]
    options = units[0].options
    for module in modules:
        _check_same(unit_of(module), options)
        _check_mesh(module, root)
    # Tensors made under inference_mode could never be trained.
    with torch.inference_mode(False), torch.no_grad():
        engine = Engine(units, root.__dict__[GROUP], options)
    watch_registrations(root)
    return engine


def _check_mesh(module: nn.Module, root: nn.Module) -> None:
    mine, theirs = module.__dict__[GROUP].mesh, root.__dict__[GROUP].mesh
    if not torch.equal(mine.mesh, theirs.mesh):
        got = f"{mine.mesh.tolist()} in unit {unit_of(module).name!r}"
        raise ConfigError(
            message("mesh", f"equal the root's, {theirs.mesh.tolist()}", got, "pass one mesh to all units")
        )


def _check_same(unit: Unit, options: ShardOptions) -> None:
    """What concerns the whole model is taken from the root: refuse another wish, do not ignore it."""
    for field in fields(ShardOptions):
        mine, theirs = getattr(unit.options, field.name), getattr(options, field.name)
        wished = field.name in _SAME_EVERYWHERE or mine != field.default
        if mine != theirs and wished and field.name not in _OF_EACH_UNIT:
            got, cure = f"{mine} in unit {unit.name!r}", "set it on the outermost module"
            raise ConfigError(message(field.name, f"equal the root's, {theirs}", got, cure))
