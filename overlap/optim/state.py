"""Optimizer state by parameter name: independent of the number of ranks, of group order and of parameter order."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from overlap.optim.chosen import is_inert
from overlap.optim.state_checks import check_groups, check_keys, check_state
from overlap.shard.flat import home_of

_HELPERS = "torch.distributed.checkpoint.state_dict"

# Which parameters a group holds, and what the user called them, is said by whoever built the optimizer.
_ABOUT_PARAMS = ("params", "param_names")


def name_of(param: Tensor) -> str:
    """Fully qualified name of a public parameter."""
    home = home_of(param)
    assert home is not None
    return home.param.fqn


def state_by_name(optimizer: Optimizer) -> dict[str, Any]:
    """Gather nothing, compute nothing: live tensors by name."""
    return _state(optimizer, name_of)


def state_by_position(optimizer: Optimizer) -> dict[str, Any]:
    """The same as torch's optimizers have it: parameters are numbers, counted through all groups."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    state = _state(optimizer, {param: number for number, param in enumerate(params)}.__getitem__, every=True)
    # torch's helpers insist on an entry for whatever requires a gradient.
    state["state"].update({number: {} for number, param in enumerate(params) if is_inert(param)})
    return state


def _state(optimizer: Optimizer, key_of: Callable[[Tensor], Any], *, every: bool = False) -> dict[str, Any]:
    groups = [
        {
            **{key: value for key, value in group.items() if key != "params"},
            "params": [key_of(param) for param in group["params"] if every or not is_inert(param)],
        }
        for group in optimizer.param_groups
    ]
    state = {key_of(param): dict(values) for param, values in optimizer.state.items() if values}
    return {"state": state, "param_groups": groups}


def asked_by_torch() -> bool:
    """Whether a helper of ``torch.distributed.checkpoint.state_dict`` is calling.

    They take numbers for names out of every state_dict, and would make numbers of our names; nothing but their place
    on the stack tells them from a user.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != _HELPERS:
        frame = frame.f_back
    return frame is not None


@torch.no_grad()
def load_by_name(
    optimizer: Optimizer,
    given: dict[str, Any],
    check_group: Callable[[dict[str, Any]], None],
    begin: Callable[[Tensor], dict[str, Any]],
    blank: Callable[[Any], dict[str, Any]],
) -> None:
    """Check everything, then copy into the live state.

    Args:
        optimizer: whose state is replaced.
        given: what ``state_by_name`` gave.
        check_group: raises ``ConfigError`` for a group with a value out of range.
        begin: makes the state of a parameter that was frozen until now.
        blank: what such a state looks like, for a tensor that stands for its moments.
    """
    mine = state_by_name(optimizer)
    check_keys("the state_dict", given, mine)
    if asked_by_torch():
        given = _in_our_words(optimizer, given)
    check_groups(mine["param_groups"], given["param_groups"])
    check_state({**mine["state"], **_late(optimizer, given["state"], blank)}, given["state"])
    for group, theirs in zip(optimizer.param_groups, given["param_groups"], strict=True):
        check_group({**group, **theirs, "params": group["params"]})
    for group, theirs in zip(optimizer.param_groups, given["param_groups"], strict=True):
        group.update({key: _option(group.get(key), value) for key, value in theirs.items() if key not in _ABOUT_PARAMS})
        for param in _trainable(group):
            values = given["state"].get(name_of(param))
            if values is not None:
                _copy(optimizer.state.get(param) or begin(param), values)


def _trainable(group: dict[str, Any]) -> list[Tensor]:
    return [param for param in group["params"] if not is_inert(param)]


def _late(
    optimizer: Optimizer, given: dict[str, Any], blank: Callable[[Any], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What entries must look like of parameters that are still frozen here, and were not where they were saved."""
    params = [
        param for group in optimizer.param_groups for param in _trainable(group) if not optimizer.state.get(param)
    ]
    return {name: blank(param) for name, param in zip(map(name_of, params), params, strict=True) if name in given}


def _option(mine: Any, value: Any) -> Any:
    """A copy: a rate that is a tensor must not be shared by two optimizers. torch's helpers make lists of pairs."""
    return tuple(value) if isinstance(value, list) and isinstance(mine, tuple) else deepcopy(value)


def _in_our_words(optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
    """Parameters under our names: a module around the sharded model has put its own before them. Order is ours."""
    state, groups = {}, []
    for mine, theirs in zip(optimizer.param_groups, given["param_groups"], strict=False):
        pairs = zip(mine["params"], theirs["params"], strict=False)
        ours = {name_of(param): name for param, name in pairs if not is_inert(param)}
        state.update({our: given["state"][name] for our, name in ours.items() if name in given["state"]})
        groups.append({**theirs, "params": list(ours)})
    return {"state": state, "param_groups": groups + given["param_groups"][len(groups) :]}


def _copy(live: dict[str, Any], given: dict[str, Any]) -> None:
    for key, value in live.items():
        if isinstance(value, DTensor):
            theirs = given[key]
            value.to_local().copy_(theirs.to_local() if isinstance(theirs, DTensor) else theirs)
        else:
            live[key] = int(given[key])
