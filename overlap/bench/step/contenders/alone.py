"""One process without communication: what a step costs if nothing had to be shared."""

from functools import partial

import torch
from torch import nn
from torch.optim import AdamW

from overlap.bench.step.contenders.contender import Contender, update
from overlap.bench.step.workload import Workload


def alone(workload: Workload) -> Contender:
    """Build the floor: the model in its compute dtype, fp32 weights beside it where that is another."""
    model = workload.model()
    if workload.dtype == torch.float32:
        optimizer = AdamW(model.parameters(), fused=True, **workload.adamw())
        return Contender(model, partial(update, optimizer))
    return _with_masters(model, workload)


def _with_masters(model: nn.Module, workload: Workload) -> Contender:
    masters = [nn.Parameter(param.detach().clone()) for param in model.parameters()]
    working = list(model.to(workload.dtype).parameters())
    optimizer = AdamW(masters, fused=True, **workload.adamw())

    @torch.no_grad()
    def through_masters() -> None:
        for master, param in zip(masters, working, strict=True):
            assert param.grad is not None
            master.grad = param.grad.float()
        optimizer.step()
        for master, param in zip(masters, working, strict=True):
            param.copy_(master)
        model.zero_grad()

    return Contender(model, through_masters)
