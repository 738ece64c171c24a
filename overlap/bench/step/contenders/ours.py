"""This engine, one unit per block and the root, with its defaults or what ``--set`` says."""

from dataclasses import replace
from functools import partial

import torch
from torch import nn

import overlap
from overlap.bench.step.contenders.contender import Contender, update
from overlap.bench.step.workload import Workload
from overlap.demo.model import Block
from overlap.shard.partition import UnitRule

FIRST_IN_PARTS = (Block, "blocks.0.attention", "blocks.0.feed_forward")
"""The first block is gathered in two: nothing hides the first gather of a step."""


def ours_best(workload: Workload, *, reduce_dtype: torch.dtype = torch.float32) -> Contender:
    """Shard it at stage 3 for this model: the first block in parts, and memory for one unit more.

    Args:
        workload: as for ``ours``.
        reduce_dtype: as for ``ours``.
    """
    options = {"prefetch": 3, **workload.engine_options}
    made = ours(replace(workload, engine_options=options), stage=3, reduce_dtype=reduce_dtype, unit=FIRST_IN_PARTS)
    return replace(made, options=f"first block in parts, {made.options}")


def ours(
    workload: Workload, *, stage: int, reduce_dtype: torch.dtype = torch.float32, unit: UnitRule = Block
) -> Contender:
    """Shard the model at a stage, with our fused AdamW.

    Args:
        workload: what to train.
        stage: 1, 2 or 3.
        reduce_dtype: of gradients on the wire; sums are fp32 whatever it is.
        unit: what is gathered together.
    """
    model = overlap.shard(
        workload.model(),
        stage=stage,
        unit=unit,
        param_dtype=None if workload.dtype == torch.float32 else workload.dtype,
        reduce_dtype=reduce_dtype,
        **workload.engine_options,
    )
    chosen = ", ".join(f"{name}={value}" for name, value in workload.engine_options.items())
    optimizer = overlap.AdamW(model.parameters(), **workload.adamw())
    return Contender(model, partial(update, optimizer), sent=partial(_sent, model), options=chosen)


def _sent(model: nn.Module) -> int:
    engine = overlap.engine_of(model)
    own = {engine.group.comm, engine.group.everyone, engine.group.control.communicator}
    return sum(comm.counter.snapshot().sent_bytes for comm in {*engine.comms.values(), *own})
