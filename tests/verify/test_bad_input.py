"""What cannot be verified is refused at once, on every rank alike."""

from typing import Any

import pytest
import torch
from support.clear_error import clear_error
from support.ranks import Ranks
from torch import nn
from verify.models import check, data, seeded

import overlap
from overlap.verify import verify

_shared = nn.Linear(2, 2)

WRONG: dict[str, tuple[type[Exception], tuple[str, ...], dict[str, Any]]] = {
    "a model for a factory": (overlap.ConfigError, ("make_model", "a Linear"), {"make": nn.Linear(2, 2)}),
    "no module": (overlap.ConfigError, ("make_model()", "torch.nn.Module", "NoneType"), {"make": lambda: None}),
    "the same module": (overlap.ConfigError, ("make_model()", "new model in every call"), {"make": lambda: _shared}),
    "shared parameters": (
        overlap.ConfigError,
        ("make_model()", "shares parameters"),
        {"make": lambda: nn.Sequential(_shared)},
    ),
    "an unknown option": (
        overlap.ConfigError,
        ("option", "preftech", "did you mean 'prefetch'?"),
        {"options": {"preftech": 2}},
    ),
    "a wrong stage": (overlap.ConfigError, ("stage", "0, 1, 2, 3", "4"), {"options": {"stage": 4}}),
    "a unit that is not there": (overlap.ConfigError, ("unit", "layers.*"), {"options": {"unit": "layers.*"}}),
    "an unknown optimizer": (
        overlap.ConfigError,
        ("optimizer", "adamm", "did you mean adamw?"),
        {"optimizer": "adamm"},
    ),
    "a learning rate for a factory": (
        overlap.ConfigError,
        ("lr", "left out"),
        {"optimizer": torch.optim.SGD, "lr": 0.1},
    ),
    "no optimizer": (
        overlap.ConfigError,
        ("optimizer(parameters)", "torch.optim.Optimizer", "list"),
        {"optimizer": list},
    ),
    "too few batches": (overlap.ConfigError, ("batches", "6 in all"), {"batches": [data(0, 0)]}),
    "a negative tolerance": (overlap.ConfigError, ("rtol", "at least 0"), {"rtol": -1.0}),
    "nothing to train": (
        overlap.ConfigError,
        ("loss(model, batch)", "trainable"),
        {"make": lambda: seeded().requires_grad_(False)},
    ),
    "a loss that is no scalar": (
        overlap.ConfigError,
        ("loss(model, batch)", "scalar", "[6, 2]"),
        {"loss": lambda model, batch: model(batch)},
    ),
}


def _refused(name: str) -> None:
    kind, words, given = WRONG[name]
    with clear_error(kind, *words):
        check(**given)


@pytest.mark.parametrize("name", WRONG)
def test_refused(ranks: Ranks, name: str) -> None:
    ranks(2, _refused, name)


def test_without_a_process_group():
    with clear_error(overlap.StateError, "torch.distributed", "init_process_group", "overlap verify"):
        verify(seeded, data)
