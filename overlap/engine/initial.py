"""Initial weights and buffers are the same on every rank: made so, or checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.comm.control import ControlChannel
from overlap.comm.label import labelled
from overlap.errors import StateError, message


def broadcast_initial(named: Iterable[tuple[str, Tensor]], comm: Communicator) -> None:
    """Overwrite every rank's tensors with rank 0's; names keep tensors of one size apart. A collective."""
    for name, tensor in named:
        source = tensor.detach().contiguous()
        with labelled(f"'{name}'"):
            comm.broadcast(source, 0, "init")
        if comm.rank != 0:
            tensor.detach().copy_(source)


def verify_initial(named: Iterable[tuple[str, Tensor]], control: ControlChannel) -> None:
    """Make sure that all ranks hold the same bits. A collective.

    Raises:
        StateError: naming the first tensor that differs.
    """
    digests = {name: _digest(tensor) for name, tensor in named}
    everyone = control.gather_object(digests)
    for name, digest in digests.items():
        odd = [rank for rank, theirs in enumerate(everyone) if theirs.get(name) != digest]
        if odd:
            raise StateError(
                message(
                    f"initial {name!r}",
                    "be equal on all ranks",
                    f"other values on ranks {odd}",
                    'seed the ranks alike or use init="broadcast"',
                )
            )


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
