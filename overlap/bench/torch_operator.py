"""Torch operators that not every supported version has, by name: such a peer is shown as missing, not left out."""

from collections.abc import Callable
from typing import Any

import torch

from overlap.bench.case import Peer


def torch_operator(name: str) -> Callable[..., Any] | None:
    """Return ``torch.<name>``, or None where this version has none."""
    return getattr(torch, name, None)


def missing_operator(name: str) -> Peer:
    """Return a peer that cannot run because the operator is not there."""
    return Peer(f"torch.{name}", None, missing=f"torch {torch.__version__} has no torch.{name}")
