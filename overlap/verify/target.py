"""The user's code by name: ``FILE.py:attribute`` or ``module:attribute``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from overlap.errors import ConfigError, message


def load(target: str, near: str | None = None) -> Any:
    """Import what a target names.

    Args:
        target: file or module, a colon, and the attribute; with ``near`` the attribute alone will do.
        near: a target in whose module it then is.

    Raises:
        ConfigError: no such file, module or attribute, or its import fails.
    """
    place, _, name = target.rpartition(":")
    if not place:
        if near is None:
            cure = "write e.g. train.py:make_model"
            raise ConfigError(message("target", "be FILE.py:factory or module:factory", target, cure))
        place = near.rpartition(":")[0]
    module = module_at(place)
    if hasattr(module, name):
        return getattr(module, name)
    public = [each for each in vars(module) if not each.startswith("_")]
    close = get_close_matches(name, public, n=1)
    cure = f"did you mean {close[0]}?" if close else "name an attribute at its top level"
    raise ConfigError(message(f"{place}:{name}", f"be an attribute of {place}", "no such name", cure))


def module_at(place: str) -> ModuleType:
    """The module that a file's path or a dotted name means; imported once.

    Raises:
        ConfigError: there is none, or its import fails.
    """
    try:
        return _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    except ConfigError:
        raise
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise ConfigError(message(place, "be importable", got, "make it run alone first")) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(message("target", "name a file that exists", str(path), "check the path"))
    name = f"overlap_verify_{path.stem}"  # not the stem alone: train.py must not hide, or be, another train
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path.resolve()):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(path.resolve().parent))  # as if it had been run: it finds its neighbours
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(name)
