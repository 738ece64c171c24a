"""Python imports this file when it starts, in every process of a program under ``overlap profile``.

It costs nothing until the process imports torch's optimizers: then recording is prepared. The user's own
``sitecustomize``, which this one hides, is run first.
"""

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_OPTIMIZERS = "torch.optim.optimizer"
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Preparing(Loader):
    """Loads a module as ever, then prepares recording."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        import json

        home = json.loads(os.environ["OVERLAP_PROFILE"])["home"]
        if home not in sys.path:
            sys.path.append(home)
        from overlap.record.recorder import prepare

        prepare(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != _OPTIMIZERS:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Preparing(spec.loader)
        return spec


def _run_the_hidden_one() -> None:
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_the_hidden_one()
if "OVERLAP_PROFILE" in os.environ:
    sys.meta_path.insert(0, _Finder())
