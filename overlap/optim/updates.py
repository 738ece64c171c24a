"""The launches of one step: one per run of neighbours in a flat that share group and step, usually one per flat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from overlap import ops
from overlap.shard.flat import Flat
from overlap.shard.param import ShardedParam, local_rows

# Alignment padding between neighbours is zero in every buffer, and an update leaves it zero.
_GAP = 128

Group = dict[str, Any]


@dataclass(slots=True)
class Run:
    """Consecutive parameters of one flat with the same group and step.

    Attributes:
        group: whose options hold.
        step: number of this step, from 1.
        start: first element in the flat.
        end: behind the last element.
    """

    group: Group
    step: int
    start: int
    end: int

    def nbytes(self, flat: Flat) -> int:
        """Memory traffic of one update: master and moments read and written, gradient read, shard written."""
        shard = 0 if flat.shard is flat.master else flat.shard.itemsize
        grad = flat.grad.itemsize if flat.grad is not None else 0
        return (self.end - self.start) * (2 * 3 * flat.master.itemsize + grad + shard)


def runs_of(wanted: Iterable[tuple[Group, Flat, ShardedParam, int]]) -> dict[Flat, list[Run]]:
    """Join neighbours.

    Args:
        wanted: group, flat, parameter and number of this step of what is to be updated, in any order.
    """
    runs: dict[Flat, list[Run]] = {}
    for group, flat, behind, step in sorted(wanted, key=lambda each: each[2].layout.offset):
        _extend(runs.setdefault(flat, []), behind, group, step)
    return runs


def _extend(runs: list[Run], behind: ShardedParam, group: Group, step: int) -> None:
    start = behind.layout.offset
    end = start + behind.layout.chunk
    if runs and runs[-1].group is group and runs[-1].step == step and start - runs[-1].end < _GAP:
        runs[-1].end = end
    else:
        runs.append(Run(group, step, start, end))


def update(flat: Flat, run: Run, scale: Tensor | None, skip: Tensor | None) -> None:
    """Launch AdamW over one run.

    Args:
        flat: its buffers.
        run: which part of them.
        scale: fp32 ``[1]``, multiplies gradients.
        skip: ``[1]``; nonzero leaves all buffers as they are.
    """
    group, grads = run.group, flat.grad if flat.grad is not None else _gathered_gradient(flat)
    buffers = (flat.master, flat.exp_avg, flat.exp_avg_sq, grads)
    master, exp_avg, exp_avg_sq, grad = (buffer[run.start : run.end] for buffer in buffers if buffer is not None)
    shard = None if flat.shard is flat.master else flat.shard[run.start : run.end]
    ops.adamw(
        master,
        exp_avg,
        exp_avg_sq,
        grad,
        shard,
        lr=float(group["lr"]),
        beta1=float(group["betas"][0]),
        beta2=float(group["betas"][1]),
        eps=float(group["eps"]),
        weight_decay=float(group["weight_decay"]),
        step=run.step,
        grad_scale=scale,
        skip=skip,
        maximize=group["maximize"],
    )


def _gathered_gradient(flat: Flat) -> Tensor:
    """No backward has been here: gradients are where the user has set them."""
    grads = torch.zeros_like(flat.master)
    for param in flat.params:
        if param.public.grad is not None:
            local_rows(grads, param.layout, flat.rank).copy_(param.rows_of(param.public.grad))
    return grads
