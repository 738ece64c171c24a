"""What carries the messages between ranks: memory of their host, gloo, or each between some of them."""

from collections.abc import Callable
from typing import TypeVar
from unittest.mock import patch

import torch.distributed as dist

from overlap.comm import same_host

CARRIERS = ("memory", "gloo", "both")
T = TypeVar("T")


def carried_by(carrier: str, make: Callable[[], T]) -> T:
    """What `make` makes, with communicators that use `carrier`; "both" lets pairs of ranks be hosts."""
    with (
        patch.object(same_host, "shared_memory_mode_from_env", lambda: "off" if carrier == "gloo" else "auto"),
        patch.object(same_host, "_host", lambda: dist.get_rank() // 2 if carrier == "both" else 0),
    ):
        return make()
