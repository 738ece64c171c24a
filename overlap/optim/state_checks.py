"""Whether an optimizer's state_dict fits: asked before any of it is taken over.

Every check raises ``ConfigError``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from overlap.errors import ConfigError, message


def check_keys(what: str, given: dict[str, Any], wanted: Iterable[str]) -> None:
    """Refuse a dictionary in which something is absent."""
    absent = sorted(set(wanted) - given.keys())
    if absent:
        raise ConfigError(message(absent[0], f"be in {what}", "nothing", "pass what state_dict() gave"))


def check_groups(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Refuse groups of another number, or with other members."""
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
        check_keys(f"param group {number}", given, ("params",))
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


def check_state(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse states that lack a parameter or an entry, or whose shapes differ; ``mine`` says what is wanted."""
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
