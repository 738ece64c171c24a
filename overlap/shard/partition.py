"""Which modules become units, and which parameters belong to each."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from overlap import _compat
from overlap.errors import ConfigError, message
from overlap.shard.param import Owner

OneRule = type[nn.Module] | str | int
UnitRule = OneRule | Sequence[OneRule]


def find_units(model: nn.Module, rule: UnitRule) -> list[nn.Module]:
    """The modules below ``model`` that ``rule`` selects, innermost first.

    Args:
        model: the whole model; it is not part of the answer.
        rule: a module class; a name pattern such as ``"blocks.*"``; or a size: the largest modules of at most that
            many parameters. Several in a list or tuple select what any of them does.

    Raises:
        ConfigError: a rule selects nothing, or is of another type.
    """
    rules: Sequence[Any] = rule if isinstance(rule, list | tuple) and rule else (rule,)
    chosen = {module for each in rules for module in _selected(model, each)}
    return [module for module in model.modules() if module in chosen][::-1]


def _selected(model: nn.Module, rule: OneRule) -> list[nn.Module]:
    chosen = _matching(model, rule)
    if not chosen:
        names = ", ".join(sorted({type(module).__name__ for module in model.modules()})[:12])
        raise ConfigError(message("unit", "select at least one module", rule, f"classes here are {names}"))
    return chosen


def _matching(model: nn.Module, rule: OneRule) -> list[nn.Module]:
    inner = list(model.named_modules())[1:]
    if isinstance(rule, type) and issubclass(rule, nn.Module):
        return [module for _, module in inner if isinstance(module, rule)]
    if isinstance(rule, str):
        return [module for name, module in inner if _name_matches(name, rule)]
    if isinstance(rule, int) and not isinstance(rule, bool) and rule > 0:
        return list(_largest_within(model, rule))
    raise ConfigError(
        message(
            "unit",
            "be a module class, a name pattern or a positive size",
            rule,
            'e.g. unit=Block or "blocks.*"',
        )
    )


def _name_matches(name: str, pattern: str) -> bool:
    """Match part by part, so that ``blocks.*`` selects ``blocks.0`` but not ``blocks.0.attention``."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _largest_within(module: nn.Module, size: int) -> Iterator[nn.Module]:
    for child in module.children():
        count = sum(param.numel() for param in child.parameters())
        # A container such as ModuleList has no forward to hook: look inside it.
        if 0 < count <= size and type(child).forward is not nn.Module.forward:
            yield child
        else:
            yield from _largest_within(child, size)


def own_modules(module: nn.Module, is_unit: Callable[[nn.Module], bool]) -> Iterator[tuple[str, nn.Module]]:
    """The module and everything below it, without what lies inside another unit; names are relative."""

    def walk(prefix: str, current: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        yield prefix, current
        for name, child in current.named_children():
            if not is_unit(child):
                yield from walk(f"{prefix}.{name}" if prefix else name, child)

    return walk("", module)


def own_parameters(
    module: nn.Module, is_unit: Callable[[nn.Module], bool]
) -> dict[nn.Parameter, tuple[str, tuple[Owner, ...]]]:
    """Parameters of a unit in registration order: name of the first owner, and all owners (ties have several)."""
    found: dict[nn.Parameter, tuple[str, tuple[Owner, ...]]] = {}
    for prefix, current in own_modules(module, is_unit):
        table = _compat.parameter_table(current)
        for attribute, param in table.items():
            if param is None:
                continue
            name, owners = found.get(param, (f"{prefix}.{attribute}" if prefix else attribute, ()))
            found[param] = (name, (*owners, Owner(table, attribute)))
    return found
