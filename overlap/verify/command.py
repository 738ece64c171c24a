"""What ``overlap verify`` does: look at the user's code first, then run it on all ranks.

check(settings)       everything that can be refused is refused here, before a process is started
run_local(settings)   starts the ranks; each of them is ``python -m overlap.verify.worker``
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from overlap.config import options_from
from overlap.demo.launch import launch
from overlap.errors import ConfigError, message
from overlap.jsonfile import check_writable
from overlap.shard.partition import UnitRule, find_units
from overlap.verify.batches import share
from overlap.verify.build import build
from overlap.verify.optimizers import NAMED, factory_of
from overlap.verify.randomness import seeded
from overlap.verify.settings import VerifySettings
from overlap.verify.target import load
from overlap.verify.tolerance import check_chosen


def arguments_of(settings: VerifySettings) -> dict[str, Any]:
    """Import the user's code and turn the settings into the arguments of ``overlap.verify.verify``.

    Raises:
        ConfigError: a name leads nowhere, or to something that cannot be called.
    """
    options = settings.shard_options()
    if settings.unit is not None:
        options["unit"] = _unit(settings.unit, settings.target)
    return {
        "make_model": _function("make_model", settings.target),
        "batches": load(settings.batches, settings.target),
        "loss": _loss(settings),
        "steps": settings.steps,
        "options": options,
        "optimizer": _optimizer(settings),
        "lr": settings.lr,
        "rtol": settings.rtol,
        "atol": settings.atol,
        "seed": settings.seed,
    }


def _function(role: str, name: str, near: str | None = None) -> Any:
    found = load(name, near)
    if not callable(found):
        got, cure = f"a {type(found).__name__}", "name a function"
        raise ConfigError(message(f"{role} {name}", "be callable", got, cure))
    return found


def _loss(settings: VerifySettings) -> Any:
    """Named, or a function called ``loss`` beside the factory: it is meant to be used."""
    if settings.loss is not None:
        return _function("loss", settings.loss, settings.target)
    with suppress(ConfigError):
        return _function("loss", "loss", settings.target)
    return None


def _optimizer(settings: VerifySettings) -> Any:
    if settings.optimizer in NAMED:
        return settings.optimizer
    return _function("optimizer", settings.optimizer, settings.target)


def _unit(rule: str, target: str) -> UnitRule:
    """A size, a class that the target's module knows by this name, or a pattern."""
    if rule.isdigit():
        return int(rule)
    with suppress(ConfigError):
        found = load(rule, target)
        if isinstance(found, type) and issubclass(found, torch.nn.Module):
            return found
    return rule


def check(settings: VerifySettings) -> None:
    """Refuse what cannot be verified. The model is built once, in this process, and dropped.

    Raises:
        ConfigError: naming what is wrong.
    """
    with seeded(settings.seed):
        given = arguments_of(settings)
        unit = given["options"].pop("unit", None)
        options_from(given["options"])
        factory_of(given["optimizer"], given["lr"])
        check_chosen(given["rtol"], given["atol"])
        share(given["batches"], given["steps"], settings.ranks - 1, settings.ranks)
        _check_model(given["make_model"], unit)
    check_writable("json", None if settings.json is None else Path(settings.json))


def _check_model(make_model: Any, unit: UnitRule | None) -> None:
    try:
        model = build(make_model)
    except ConfigError:
        raise
    except Exception:  # it may need the process group: if it fails there too, a rank will tell, with the traceback
        return
    if unit is not None:
        find_units(model, unit)


def run_local(settings: VerifySettings) -> bool:
    """Run on processes of this host; whether both models agree. Rank 0 prints the report.

    Raises:
        OverlapError: a rank failed.
    """
    with TemporaryDirectory(prefix="overlap-verify-") as folder:
        path = Path(settings.json or Path(folder) / "report.json")
        launch("overlap.verify.worker", replace(settings, json=str(path)).to_json(), settings.ranks)
        return bool(json.loads(path.read_text(encoding="utf-8"))["ok"])
