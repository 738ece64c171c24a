"""How a model becomes sharded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from overlap.config import ShardOptions, options_from
from overlap.engine.build import build_unit
from overlap.engine.mesh import shard_group
from overlap.engine.module import adopt
from overlap.engine.registry import is_unit
from overlap.errors import ConfigError, StateError, message
from overlap.optim import guard
from overlap.shard.partition import UnitRule, find_units

M = TypeVar("M", bound=nn.Module)


def fully_shard(module: M, mesh: DeviceMesh | None = None, **options: Any) -> M:
    """Shard the parameters of ``module`` that no inner ``fully_shard`` has taken; they become one unit.

    Apply it bottom-up, as FSDP2's: to each block, then to the model. Works in place: parameters become ``DTensor``s
    over this rank's rows, the module becomes an ``FSDPModule``. A collective over the mesh.

    Args:
        module: any module; on the meta device it is materialised here.
        mesh: ``[shard]``, or ``[replicate, shard]`` for hybrid sharding; None means all ranks.
        **options: fields of ``ShardOptions``.

    Returns:
        ``module`` itself.

    Raises:
        ConfigError: not a module, unknown or wrong option, or meta tensors that nothing fills.
        StateError: already sharded, or no process group and no launcher.
        DesyncError: ranks bring different parameters or options.
    """
    chosen = options_from(options)
    _check_module(module)
    _shard_each([module], mesh, chosen)
    return module


def shard(model: M, stage: int = 3, unit: UnitRule | None = None, mesh: DeviceMesh | None = None, **options: Any) -> M:
    """Shard a whole model in one call: every module that ``unit`` selects, then the rest with the model itself.

    Args:
        model: the model; changed in place.
        stage: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters.
        unit: a module class, a name pattern such as ``"blocks.*"``, or a size in parameters (the largest modules of at
            most that many); or several of them: ``(Block, "blocks.0.*")`` gathers the first block in parts, since
            nothing hides the first gather of a step. None makes the model one unit.
        mesh: ``[shard]``, or ``[replicate, shard]`` for hybrid sharding; None means all ranks.
        **options: further fields of ``ShardOptions``.

    Returns:
        ``model`` itself.

    Raises:
        As ``fully_shard``; ``ConfigError`` also if ``unit`` selects nothing.
    """
    chosen = options_from({"stage": stage, **options})
    _check_module(model)
    units: list[nn.Module] = [] if unit is None else find_units(model, unit)
    for inner in units:
        _check_module(inner)
    _shard_each([*units, model], mesh, chosen)
    return model


def _check_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise ConfigError(
            message("module", "be a torch.nn.Module", type(module).__name__, "pass the model or one of its blocks")
        )
    if type(module).forward is nn.Module.forward and "forward" not in module.__dict__:
        got, cure = f"a {type(module).__name__}", "shard the modules inside it"
        raise ConfigError(message("module", "have a forward to be gathered for", got, cure))
    if is_unit(module):
        raise StateError(
            message(
                "module",
                "be sharded once",
                f"a sharded {type(module).__name__}",
                "shard innermost modules first",
            )
        )


def _shard_each(modules: Sequence[nn.Module], mesh: DeviceMesh | None, options: ShardOptions) -> None:
    """The last one holds the others: all lie on one mesh, one object of it."""
    group = shard_group(mesh, modules[-1], over_mesh=options.masters == "mesh")
    guard.install()
    for module in modules:
        adopt(module, build_unit(module, group, options, is_unit), group)
