"""Shard one unit: from a module's parameters to flats and public DTensor parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from overlap.comm.collective import Communicator
from overlap.comm.control import ControlChannel
from overlap.config import ShardOptions
from overlap.engine.initial import broadcast_initial, verify_initial
from overlap.errors import ConfigError, StateError, message
from overlap.shard.flat import TRAINABLE_DTYPES, Flat, FlatKey, empty_flat, home_of
from overlap.shard.layout import lay_out, memory_order, split_dim
from overlap.shard.materialize import materialize
from overlap.shard.param import (
    REPLACED_MARK,
    EmptyParam,
    Owner,
    ShardedParam,
    as_dtensor,
    local_rows,
    make_public,
    mark_replaced,
    replaced_by,
    retie,
    rows_in,
)
from overlap.shard.partition import own_modules, own_parameters
from overlap.shard.unit import Unit

Orders = dict[str, tuple[int, ...]]
"""Dimensions from the outermost in memory to the innermost, by name."""

Named = dict[nn.Parameter, tuple[str, tuple[Owner, ...]]]
"""Parameters, the name of each below its unit, and the places that hold it."""


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """The ranks that a model is sharded over, and how they talk while it is built.

    Attributes:
        mesh: ``[shard]``, or ``[replicate, shard]`` for hybrid sharding.
        device: where the model lives.
        comm: over the ranks that share one copy of the model.
        everyone: over all ranks of the mesh; ``comm`` itself where there is one copy.
        control: over all ranks of the mesh, on the host.
        rows: ``[replicate, shard]`` where all ranks of it shard (then ``mesh`` has one dimension) and its rows gather.
    """

    mesh: DeviceMesh
    device: torch.device
    comm: Communicator
    everyone: Communicator
    control: ControlChannel
    rows: DeviceMesh | None = None

    @property
    def rank(self) -> int:
        """Which shard this rank has."""
        return self.comm.rank

    @property
    def world(self) -> int:
        """Ranks that share one copy."""
        return self.comm.world

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.everyone.world // self.comm.world


def build_unit(
    module: nn.Module, group: ShardGroup, options: ShardOptions, is_unit: Callable[[nn.Module], bool]
) -> Unit:
    """Shard the parameters of ``module`` that no inner unit owns. A collective.

    A parameter that is tied to one of another unit stays that unit's; this one borrows it.

    Raises:
        StateError: a parameter is already sharded, or tied to one of a model that is gone.
        DesyncError: ranks bring different parameters.
        ConfigError: meta tensors that nothing fills.
    """
    given, tied = _split_tied(own_parameters(module, is_unit))
    for param, (name, _) in given.items():
        _check_parameter(name, param)
    orders = _agree_on_parameters(given, tied, group, options)
    modules = list(own_modules(module, is_unit))
    materialize(modules, group.device, options.init_fn)
    for _, owners in given.values():
        retie(owners)
    borrowed = tuple(_borrow(public, owners) for public, (_, owners) in tied.items())
    named = {param: place for param, place in own_parameters(module, is_unit).items() if param not in tied}
    _make_equal(modules, tied, group, options)
    flats = _build_flats(named, orders, group, options)
    leaf = not any(is_unit(inner) for inner in module.modules() if inner is not module)
    rows = 1 if group.rows is None else group.rows.size(0)
    unit = Unit("", options, flats, leaf, borrowed, _empties(named, options), rows=rows)
    unit.show_public()
    mark_replaced(given)
    return unit


def _split_tied(found: Named) -> tuple[Named, Named]:
    """Parameters that this unit takes, and the public faces of those that another one has taken."""
    given: Named = {}
    tied: Named = {}
    for param, (name, owners) in found.items():
        public = param if home_of(param) is not None else replaced_by(param)
        if public is None or home_of(public) is None:
            given[param] = name, owners
        else:
            tied[public] = name, (*tied.get(public, ("", ()))[1], *owners)
    return given, tied


def _borrow(public: nn.Parameter, owners: tuple[Owner, ...]) -> ShardedParam:
    """Let a parameter of another unit show its faces here, too."""
    home = home_of(public)
    assert home is not None
    home.param.owners = (*home.param.owners, *owners)
    home.param.show_public()
    return home.param


def _check_parameter(name: str, param: nn.Parameter) -> None:
    if param.requires_grad and param.dtype not in TRAINABLE_DTYPES:
        got, cure = f"{param.dtype}", "convert it, or freeze it before sharding"
        raise ConfigError(message(f"trainable parameter {name!r}", "be fp32, bf16 or fp16", got, cure))
    if getattr(param, REPLACED_MARK, False):
        raise StateError(
            message(
                f"parameter {name!r}",
                "live as long as what it is tied to",
                "one that is tied to a parameter of a deleted model",
                "keep the model that was sharded first",
            )
        )
    if isinstance(param, DTensor):
        raise StateError(
            message(
                f"parameter {name!r}",
                "not be sharded already",
                "a DTensor",
                "shard each module once, innermost first",
            )
        )


def _agree_on_parameters(named: Named, tied: Named, group: ShardGroup, options: ShardOptions) -> Orders:
    """Sizes must agree before the first transfer: gloo ends the process on a size it does not expect.

    How rank 0 has its parameters in memory holds for all, as its values do.
    """
    facts = [f"{name} {tuple(param.shape)} {param.dtype} {param.requires_grad}" for param, (name, _) in named.items()]
    facts += [f"{name} tied" for name, _ in tied.values()]
    facts.append(f"masters {options.masters}")
    facts.append(f"stage {options.stage} {options.param_dtype} {options.reduce_dtype} {options.replicate_max_numel}")
    orders = {name: memory_order(tuple(param.shape), param.stride()) for param, (name, _) in named.items()}
    everyone = group.control.gather_object((facts, orders))
    group.control.agree("parameters and options", _first_difference(facts, [theirs for theirs, _ in everyone]))
    of_rank_0: Orders = everyone[0][1]
    return of_rank_0


def _first_difference(facts: list[str], everyone: list[list[str]]) -> str:
    """What this rank has where the ranks first differ; all give the same answer when none does."""
    for number, fact in enumerate(facts):
        if any(len(theirs) <= number or theirs[number] != fact for theirs in everyone):
            return fact
    return f"{len(facts)} facts"


def _make_equal(modules: list[tuple[str, nn.Module]], tied: Named, group: ShardGroup, options: ShardOptions) -> None:
    tensors = {}
    for prefix, module in modules:
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if tensor not in tied:
                tensors[f"{prefix}.{name}" if prefix else name] = tensor
    if options.init == "verify":
        verify_initial(tensors.items(), group.control)
    else:
        with torch.no_grad():
            once = {id(tensor): (name, tensor) for name, tensor in tensors.items()}
            broadcast_initial(once.values(), group.everyone)


def _build_flats(named: Named, orders: Orders, group: ShardGroup, options: ShardOptions) -> tuple[Flat, ...]:
    by_key: dict[FlatKey, list[nn.Parameter]] = {}
    for param, (name, _) in named.items():
        # Integer parameters have no gradient and no compute dtype: they stay as they are, whole on every rank.
        if param.is_floating_point() and param.numel() > 0:
            by_key.setdefault(_key(param, orders[name], group.world, options), []).append(param)
    return tuple(_build_flat(key, params, named, orders, group, options) for key, params in by_key.items())


def _empties(named: Named, options: ShardOptions) -> tuple[EmptyParam, ...]:
    dtype = options.param_dtype
    if dtype is None:
        return ()
    empty = {param: owners for param, (_, owners) in named.items() if param.is_floating_point() and not param.numel()}
    return tuple(EmptyParam(param, owners, dtype) for param, owners in empty.items() if param.dtype != dtype)


def _key(param: nn.Parameter, order: tuple[int, ...], world: int, options: ShardOptions) -> FlatKey:
    dim = split_dim(tuple(param.shape), world, options.replicate_max_numel, order) if options.sharded else None
    trainable = param.requires_grad
    return FlatKey(
        replicated=dim is None,
        trainable=trainable,
        # Frozen weights are never updated: no reason to widen them.
        master_dtype=torch.float32 if trainable else param.dtype,
        compute_dtype=options.param_dtype or param.dtype,
    )


def _build_flat(
    key: FlatKey,
    originals: list[nn.Parameter],
    named: Named,
    all_orders: Orders,
    group: ShardGroup,
    options: ShardOptions,
) -> Flat:
    world = 1 if key.replicated else group.world
    shapes = [tuple(param.shape) for param in originals]
    orders = [all_orders[named[param][0]] for param in originals]
    dims = [
        split_dim(shape, world, options.replicate_max_numel, order) or 0
        for shape, order in zip(shapes, orders, strict=True)
    ]
    layout = lay_out(shapes, world, dims, orders)
    flat = empty_flat(key, layout, group.rank, group.device, group.mesh)
    for original, place in zip(originals, layout.params, strict=True):
        name, owners = named[original]
        local = local_rows(flat.master, place, flat.rank)
        with torch.no_grad():
            local.copy_(rows_in(original.detach(), place, flat.rank))
        public = make_public(as_dtensor(local, place, group.mesh, replicated=key.replicated), original)
        flat.add(ShardedParam(name, owners, place, key.trainable, public))
    return flat
