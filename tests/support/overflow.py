"""Gradients that are not finite: made by fp16, or put into one element, on one rank only where it is sharded."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call

INF = float("inf")


def spoil(model: nn.Module, name: str, value: float = INF) -> None:
    """Overwrite the last element of a gradient; the last rank alone has it, of what is sharded."""
    grad = model.get_parameter(name).grad
    assert grad is not None
    if not isinstance(grad, DTensor):
        grad[(-1,) * grad.ndim] = value
    elif not grad.placements[-1].is_shard() or dist.get_rank() == dist.get_world_size() - 1:
        grad.to_local()[(-1,) * grad.ndim] = value


class Half(nn.Module):
    """Calls a model with its weights in fp16; gradients arrive at the fp32 weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Tensor:
        return functional_call(self.model, {name: param.half() for name, param in self.model.named_parameters()}, args)
