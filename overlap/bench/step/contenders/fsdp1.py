"""torch's FullyShardedDataParallel, one flat parameter per block."""

from functools import partial

import torch
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim import AdamW

from overlap.bench.step.contenders.contender import Contender, update
from overlap.bench.step.workload import Workload
from overlap.demo.model import Block


def fsdp1(workload: Workload) -> Contender:
    """Build it with prefetch in both directions."""
    mixed = None if workload.dtype == torch.float32 else MixedPrecision(workload.dtype, torch.float32)
    model = FullyShardedDataParallel(
        workload.model(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=mixed,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        forward_prefetch=True,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    optimizer = AdamW(model.parameters(), fused=True, **workload.adamw())
    return Contender(model, partial(update, optimizer), options="prefetch in both directions")
