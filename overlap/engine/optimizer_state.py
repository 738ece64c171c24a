"""Optimizer state by parameter name: independent of the number of ranks, of group order and of parameter order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from overlap.errors import ConfigError, message
from overlap.shard.flat import home_of


def name_of(param: Tensor) -> str:
    """Fully qualified name of a public parameter."""
    home = home_of(param)
    assert home is not None
    return home.param.fqn


def state_by_name(optimizer: Optimizer) -> dict[str, Any]:
    """Gather nothing, compute nothing: live tensors by name."""
    state = {name_of(param): dict(values) for param, values in optimizer.state.items()}
    groups = [
        {
            **{key: value for key, value in group.items() if key != "params"},
            "params": list(map(name_of, group["params"])),
        }
        for group in optimizer.param_groups
    ]
    return {"state": state, "param_groups": groups}


@torch.no_grad()
def load_by_name(optimizer: Optimizer, given: dict[str, Any], check_group: Callable[[dict[str, Any]], None]) -> None:
    """Check everything, then copy into the live state.

    Args:
        optimizer: whose state is replaced.
        given: what ``state_by_name`` gave.
        check_group: raises ``ConfigError`` for a group with a value out of range.
    """
    mine = state_by_name(optimizer)
    absent = sorted(mine.keys() - given.keys())
    if absent:
        raise ConfigError(message(absent[0], "be in the state_dict", "nothing", "pass what state_dict() gave"))
    _check_groups(mine["param_groups"], given["param_groups"])
    _check_state(mine["state"], given["state"])
    for group, theirs in zip(optimizer.param_groups, given["param_groups"], strict=True):
        check_group({**group, **theirs})
    for group, theirs in zip(optimizer.param_groups, given["param_groups"], strict=True):
        group.update({key: value for key, value in theirs.items() if key != "params"})
    for param, values in optimizer.state.items():
        _copy(values, given["state"][name_of(param)])


def _copy(live: dict[str, Any], given: dict[str, Any]) -> None:
    for key, value in live.items():
        if isinstance(value, DTensor):
            theirs = given[key]
            value.to_local().copy_(theirs.to_local() if isinstance(theirs, DTensor) else theirs)
        else:
            live[key] = int(given[key])


def _check_groups(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    if len(mine) != len(theirs):
        raise ConfigError(
            message(
                "param_groups",
                f"have {len(mine)} groups",
                len(theirs),
                "build the optimizer as it was when saved",
            )
        )
    for number, (have, given) in enumerate(zip(mine, theirs, strict=True)):
        odd = sorted(set(have["params"]) ^ set(given["params"]), key=str)
        if odd:
            raise ConfigError(
                message(
                    f"param group {number}",
                    "hold the same parameters",
                    f"a difference in {odd[:3]}",
                    "match groups",
                )
            )


def _check_state(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    missing = sorted(mine.keys() - theirs.keys())
    if missing:
        raise ConfigError(message("state", "hold every parameter", f"no {missing[:3]}", "load a complete state_dict"))
    for name, values in mine.items():
        for key, value in values.items():
            _check_entry(f"{key} of {name!r}", value, theirs[name].get(key))


def _check_entry(what: str, mine: Any, theirs: Any) -> None:
    if theirs is None:
        raise ConfigError(message(what, "be in the state_dict", "nothing", "load a complete state_dict"))
    rows, given = _rows(mine), _rows(theirs)
    if given != rows:
        rule = f"have shape {rows} on this rank"
        raise ConfigError(message(what, rule, given, "load a state_dict of the same model"))


def _rows(value: Any) -> tuple[int, ...]:
    """Shape on this rank; a plain tensor stands for this rank's rows."""
    if isinstance(value, DTensor):
        return tuple(value.to_local().shape)
    return tuple(value.shape) if isinstance(value, Tensor) else ()
