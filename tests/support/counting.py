"""What a piece of work cost: collectives by kind, live memory, calls of Python functions."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import overlap


def collectives(engine: overlap.Engine, work: Callable[[], Any]) -> dict[str, int]:
    """Calls on this rank's communicators while ``work`` runs, by kind; those that did not occur are left out."""
    counters = [comm.counter for comm in (*engine.comms.values(), engine.group.control.communicator)]
    before = [counter.snapshot() for counter in counters]
    work()
    total: Counter[str] = Counter()
    for counter, old in zip(counters, before, strict=True):
        total.update((counter.snapshot() - old).calls)
    return dict(total)


def live_bytes() -> int:
    """Bytes of all storages that Python can reach through a tensor."""
    storages = {}
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance would ask objects that warn when asked
        if issubclass(kind, torch.Tensor) and not issubclass(kind, DTensor) and not thing.is_meta:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def python_calls(work: Callable[[], Any]) -> int:
    """How many Python functions this thread enters while ``work`` runs: host work that no timer blurs."""
    entered = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return entered
