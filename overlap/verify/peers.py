"""How the ranks of a run talk: torch's own collectives, so that nothing under test is trusted here."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from overlap.comm.groups import control_channel, lane_group
from overlap.config import ShardOptions
from overlap.errors import StateError, message


class Peers:
    """All ranks. Every method but ``rank`` and ``world`` is a collective."""

    def __init__(self, device_type: str) -> None:
        """Open channels of our own.

        Args:
            device_type: of the model's tensors.

        Raises:
            StateError: torch.distributed is not initialised.
        """
        check_process_group()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._group = lane_group(None, "verify", backend="nccl" if device_type == "cuda" else "gloo")
        self._control = control_channel(None)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's picklable value, by rank."""
        return self._control.gather_object(value)

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite a tensor with rank 0's."""
        sent = tensor.detach().contiguous()
        if sent.numel():
            dist.broadcast(_bytes(sent), 0, group=self._group)
            tensor.detach().copy_(sent)

    def mean(self, gradient: Tensor, options: ShardOptions) -> Tensor:
        """What the engine promises for the gradients of all ranks, in fp32.

        Each is scaled and cast to ``reduce_dtype``; they are added in rank order in fp32, and kept in ``grad_dtype``.
        """
        mine = (gradient.float() * (1.0 / self.world)).to(options.reduce_dtype).contiguous()
        rows = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather([_bytes(row) for row in rows], _bytes(mine), group=self._group)
        total = rows[0].float()
        for row in rows[1:]:
            total = total + row.float()
        return total.to(options.grad_dtype).float()


def check_process_group() -> None:
    """Raise a ``StateError`` where the ranks have not met."""
    if not dist.is_initialized():
        cure = "call torch.distributed.init_process_group() first, or use the command overlap verify"
        raise StateError(message("torch.distributed", "be initialised", "no process group", cure))


def whole(tensor: Tensor) -> Tensor:
    """The full value of a parameter or gradient. A collective for a sharded one."""
    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def digest(tensor: Tensor) -> str:
    """A fingerprint of shape and bits."""
    local = tensor.detach().cpu().contiguous()
    text = f"{tuple(local.shape)} {local.dtype} "
    return hashlib.sha256(text.encode() + _bytes(local).numpy().tobytes()).hexdigest()


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor: gloo does not know every dtype."""
    return tensor.view(-1).view(torch.uint8)
