"""Parameters that are registered below a sharded module after it was sharded: nobody would reduce their gradients.

Torch tells of every registration. Only those inside a model that has an engine are looked into, when it next trains.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from overlap import _compat
from overlap.errors import StateError, message
from overlap.shard.flat import home_of
from overlap.shard.unit import Unit

# module -> the outermost sharded module around it
_roots: WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = WeakKeyDictionary()
_SUSPECT = "_overlap_late"  # in a root's __dict__: something has been registered


def watch_registrations(root: nn.Module) -> None:
    """From now on a module or parameter that is registered below ``root`` makes it suspect."""
    _install()
    root.__dict__[_SUSPECT] = True  # something may have been registered since it was sharded
    for module in root.modules():
        _roots[module] = weakref.ref(root)


@cache
def _install() -> None:
    _compat.on_registration(_note)


def _note(module: nn.Module, name: str, registered: Any) -> None:
    known = _roots.get(module)
    root = known() if known is not None else None
    if root is not None and registered is not None:
        root.__dict__[_SUSPECT] = True
        if isinstance(registered, nn.Module):
            for inner in registered.modules():
                _roots[inner] = weakref.ref(root)


def refuse_late(root: nn.Module, units: Sequence[Unit]) -> None:
    """Before a pass that trains: look into what has been registered since the model was sharded.

    What stands in the place of one of our parameters is the pass's to refuse.

    Raises:
        StateError: naming a parameter that requires grad. Frozen ones are used as they are.
    """
    if not root.__dict__.get(_SUSPECT):
        return
    late = dict(_late(root, units))
    root.__dict__[_SUSPECT] = bool(late)  # a frozen one may be unfrozen
    for name, param in late.items():
        if param.requires_grad:
            cure = "add it before sharding, freeze it, or shard its module by itself and then the model"
            raise StateError(message(f"parameter {name!r}", "be there when the model is sharded", "a later one", cure))


def _late(root: nn.Module, units: Sequence[Unit]) -> Iterator[tuple[str, nn.Parameter]]:
    ours = {(id(owner.table), owner.attribute) for unit in units for param in unit.params for owner in param.owners}
    for prefix, module in root.named_modules():
        table = _compat.parameter_table(module)
        for attribute, param in table.items():
            if param is not None and param.numel() and home_of(param) is None and (id(table), attribute) not in ours:
                yield f"{prefix}.{attribute}" if prefix else attribute, param
