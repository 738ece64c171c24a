"""Two models from one factory, with rank 0's values in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from overlap.errors import ConfigError, message
from overlap.shard.partition import UnitRule, find_units, own_parameters
from overlap.verify.peers import Peers, whole
from overlap.verify.randomness import GeneratorStates


def build_twice(make_model: Callable[[], nn.Module], device: torch.device | None) -> tuple[nn.Module, nn.Module]:
    """Call the factory twice with the same state of all random generators.

    Args:
        make_model: the factory.
        device: where to move what it builds, except what is on the meta device; None leaves it.

    Raises:
        ConfigError: it builds no modules, or they share parameters.
    """
    before = GeneratorStates.now()
    first = build(make_model, device)
    before.restore()
    second = build(make_model, device)
    shared = {id(param) for param in first.parameters()} & {id(param) for param in second.parameters()}
    if first is second or shared:
        got, cure = "one that shares parameters with the last one", "create modules and parameters inside of it"
        raise ConfigError(message("make_model()", "build a new model in every call", got, cure))
    return first, second


def build(make_model: Callable[[], nn.Module], device: torch.device | None = None) -> nn.Module:
    """Call the factory once.

    Raises:
        ConfigError: it is no function without arguments that returns a module.
    """
    if not callable(make_model) or isinstance(make_model, nn.Module):
        got, cure = f"a {type(make_model).__name__}", "pass a function without arguments that builds the model"
        raise ConfigError(message("make_model", "be a function that builds the model", got, cure))
    model = make_model()
    if not isinstance(model, nn.Module):
        cure = "let it return the model"
        raise ConfigError(message("make_model()", "return a torch.nn.Module", type(model).__name__, cure))
    if device is None or any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return model
    return model.to(device)


def unit_names(model: nn.Module, rule: UnitRule | None) -> tuple[str, ...]:
    """Names of the modules that sharding will make units, "" for the whole model, longest first."""
    units = {id(module) for module in find_units(model, rule)} if rule is not None else set()
    names = [name for name, module in model.named_modules() if id(module) in units]
    return (*sorted(names, key=len, reverse=True), "")


def unit_of(name: str, units: Iterable[str]) -> str:
    """The unit that a parameter or buffer lies in; ``units`` longest first."""
    return next(unit for unit in units if not unit or name.startswith(f"{unit}."))


def values_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def facts_of(model: nn.Module) -> list[tuple[str, str]]:
    """Name, and what must be the same on all ranks: shape, dtype, whether it is trained."""
    return [
        (name, f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{_trained(tensor)}")
        for name, tensor in values_of(model).items()
    ]


def _trained(tensor: Tensor) -> str:
    return " trained" if tensor.requires_grad else ""


def take_values(twin: nn.Module, model: nn.Module, peers: Peers) -> None:
    """Give the twin, on all ranks, the values that the model has on rank 0. A collective."""
    source = values_of(model)
    with torch.no_grad():
        for name, tensor in values_of(twin).items():
            if not tensor.is_meta:
                tensor.copy_(source[name])
                peers.broadcast(tensor)


def fill_meta(twin: nn.Module, sharded: nn.Module) -> None:
    """Give the twin what is on the meta device in it from the model that sharding has filled. A collective."""
    if not any(tensor.is_meta for tensor in values_of(twin).values()):
        return
    filled = {name: whole(param) for name, param in sharded.named_parameters()}
    for param, (name, owners) in own_parameters(twin, lambda module: False).items():
        if param.is_meta:
            new = nn.Parameter(filled[name].to(param.dtype, copy=True), requires_grad=param.requires_grad)
            for owner in owners:
                owner.table[owner.attribute] = new
    for name, buffer in twin.named_buffers():
        if buffer.is_meta:
            place, _, attribute = name.rpartition(".")
            setattr(twin.get_submodule(place), attribute, sharded.get_buffer(name).detach().clone())
