"""torch's fully_shard, as it comes and at its best.

At its best: gathers are asynchronous and asked for two units ahead in both directions; reductions have a process group
and several input buffers of their own where this torch has those options (2.13). On CPU it has no streams: a
reduction is waited for where it is called, whatever the options.
"""

from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.optim import AdamW

from overlap import _compat
from overlap.bench.step.contenders.contender import Contender, update
from overlap.bench.step.workload import Workload

AHEAD = 2
INPUT_BUFFERS = 4


def fsdp2(workload: Workload) -> Contender:
    """Build it with its defaults."""
    return _contender(_shard(workload, torch.float32)[0], workload, "")


def fsdp2_best(workload: Workload, *, reduce_dtype: torch.dtype = torch.float32, keeps: bool = False) -> Contender:
    """Build it with everything that lets it overlap.

    Args:
        workload: what to train.
        reduce_dtype: of gradients on the wire.
        keeps: parameters stay gathered from forward to backward: stage 2 by what travels.
    """
    root, *blocks = units = _shard(workload, reduce_dtype)
    if keeps:
        root.set_reshard_after_forward(False)
    _compat.gather_asynchronously(root)
    for number, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(units[number + 1 : number + 1 + AHEAD])
    for number, block in enumerate(blocks):
        block.set_modules_to_backward_prefetch(blocks[max(0, number - AHEAD) : number][::-1])
    root.set_modules_to_backward_prefetch(blocks[-AHEAD:][::-1])
    chosen = ["reshard_after_forward=False"] if keeps else []
    chosen += [f"prefetch {AHEAD} both ways", "async gathers", *_reduction_options(root)]
    return _contender(root, workload, ", ".join(chosen))


def _shard(workload: Workload, reduce_dtype: torch.dtype) -> list[FSDPModule]:
    """Shard block by block, then the model; the model first, then its blocks."""
    model, mesh = workload.model(), init_device_mesh("cpu", (workload.ranks,))
    plain = workload.dtype == reduce_dtype == torch.float32
    policy = MixedPrecisionPolicy() if plain else MixedPrecisionPolicy(workload.dtype, reduce_dtype)
    *blocks, root = [fully_shard(unit, mesh=mesh, mp_policy=policy) for unit in (*model.blocks, model)]
    return [root, *blocks]


def _reduction_options(root: FSDPModule) -> list[str]:
    """Set those that this torch has."""
    chosen = []
    if hasattr(root, "set_separate_reduce_scatter_group"):
        root.set_separate_reduce_scatter_group()
        chosen.append("separate reduce-scatter group")
    if hasattr(root, "set_reduce_scatter_max_input_buffers"):
        root.set_reduce_scatter_max_input_buffers(INPUT_BUFFERS)
        chosen.append(f"{INPUT_BUFFERS} reduce-scatter input buffers")
    return chosen


def _contender(model: FSDPModule, workload: Workload, options: str) -> Contender:
    assert isinstance(model, nn.Module)
    optimizer = AdamW(model.parameters(), fused=True, **workload.adamw())
    return Contender(model, partial(update, optimizer), options=options)
