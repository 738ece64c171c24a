"""torch's DistributedDataParallel, with AdamW on every rank or ZeroRedundancyOptimizer.

It has no compute dtype of its own on CPU: in bf16 it runs under autocast, weights and gradients stay fp32.
"""

import warnings
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from overlap.bench.step.contenders.contender import Contender, update
from overlap.bench.step.workload import Workload


def ddp(workload: Workload) -> Contender:
    """Build DDP with fused AdamW."""
    model = DistributedDataParallel(workload.model())
    return _contender(model, AdamW(model.parameters(), fused=True, **workload.adamw()), workload)


def ddp_zero(workload: Workload) -> Contender:
    """Build DDP whose optimizer states are divided over the ranks."""
    model = DistributedDataParallel(workload.model())
    optimizer = _zero_redundancy_optimizer()(model.parameters(), AdamW, fused=True, **workload.adamw())
    return _contender(model, optimizer, workload)


def _zero_redundancy_optimizer() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its package compiles others by torch.jit.script
        return import_module("torch.distributed.optim").ZeroRedundancyOptimizer


def _contender(model: nn.Module, optimizer: Optimizer, workload: Workload) -> Contender:
    autocast = workload.dtype != torch.float32
    forward = partial(_autocast, model, workload.dtype) if autocast else model
    return Contender(forward, partial(update, optimizer), options="autocast" if autocast else "")


def _autocast(model: nn.Module, dtype: torch.dtype, inputs: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype):
        loss: Tensor = model(inputs, targets)
    return loss
