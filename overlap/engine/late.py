"""Parameters that are registered below a sharded module after it was sharded: nobody would reduce their gradients.

Torch tells of every registration. Only those inside a model that has an engine are looked into, when it next trains.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from overlap import _compat
from overlap.errors import StateError, message
from overlap.shard.flat import home_of

# module -> the outermost sharded module around it
_roots: WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = WeakKeyDictionary()
_SUSPECT = "_overlap_late"  # in a root's __dict__: something has been registered


def watch_registrations(root: nn.Module) -> None:
    """From now on a module or parameter that is registered below ``root`` makes it suspect."""
    _install()
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


def refuse_late(root: nn.Module) -> None:
    """Before a pass that trains: look into what has been registered since the model was sharded.

    Raises:
        StateError: naming a parameter that requires grad. Frozen ones are used as they are.
    """
    if not root.__dict__.get(_SUSPECT):
        return
    late = {name: param for name, param in root.named_parameters() if home_of(param) is None and param.numel()}
    root.__dict__[_SUSPECT] = bool(late)  # a frozen one may be unfrozen
    for name, param in late.items():
        if param.requires_grad:
            cure = "add it before sharding, freeze it, or shard its module by itself and then the model"
            raise StateError(message(f"parameter {name!r}", "be there when the model is sharded", "a later one", cure))
