"""The launches of one step: one per run of neighbours in a flat that share group and step, usually one per flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from overlap import ops
from overlap.optim.chosen import Share, gradient_of
from overlap.shard.flat import Flat

Group = dict[str, Any]


@dataclass(slots=True)
class Run:
    """Consecutive parameters of one flat with the same group and step.

    The padding behind each goes with it: it is zero in every buffer, and an update leaves it zero.

    Attributes:
        group: whose options hold.
        step: number of this step, from 1.
        start: first element in the flat.
        end: where the next parameter starts.
    """

    group: Group
    step: int
    start: int
    end: int

    def of(self, buffer: Tensor) -> Tensor:
        """This part of one of the flat's buffers."""
        whole = self.end - self.start == buffer.numel()
        return buffer if whole else buffer.narrow(0, self.start, self.end - self.start)

    def nbytes(self, flat: Flat) -> int:
        """Memory traffic of one update: master and moments read and written, gradient read, shard written."""
        shard = 0 if flat.shard is flat.master else flat.shard.itemsize
        grad = flat.grad.itemsize if flat.grad is not None else 0
        return (self.end - self.start) * (2 * 3 * flat.master.itemsize + grad + shard)


def runs_of(share: Share, groups: Sequence[Group], steps: Sequence[int]) -> list[Run]:
    """Join neighbours.

    Args:
        share: what is to be updated.
        groups: of each parameter.
        steps: number of this step, likewise.
    """
    if share.whole and len({*map(id, groups)}) == 1 == len({*steps}):
        return [Run(groups[0], steps[0], 0, share.flat.layout.shard_numel)]
    layout = share.flat.layout
    starts = [place.offset for place in layout.params]
    ends = dict(zip(starts, [*starts[1:], layout.shard_numel], strict=True))
    runs: list[Run] = []
    members = zip(share.params, groups, steps, strict=True)
    for behind, group, step in sorted(members, key=lambda each: each[0].layout.offset):
        start = behind.layout.offset
        if runs and runs[-1].group is group and runs[-1].step == step and start == runs[-1].end:
            runs[-1].end = ends[start]
        else:
            runs.append(Run(group, step, start, ends[start]))
    return runs


def options_of(group: Group) -> dict[str, Any]:
    """What a group says, as ``ops.adamw`` takes it: read once per step, since a rate may be a tensor."""
    beta1, beta2 = group["betas"]
    numbers = {
        "lr": group["lr"],
        "beta1": beta1,
        "beta2": beta2,
        "eps": group["eps"],
        "weight_decay": group["weight_decay"],
    }
    return {**{name: float(number) for name, number in numbers.items()}, "maximize": group["maximize"]}


def update(flat: Flat, run: Run, options: dict[str, Any], scale: Tensor | None, skip: Tensor | None) -> None:
    """Launch AdamW over one run.

    Args:
        flat: its buffers.
        run: which part of them.
        options: of its group.
        scale: fp32 ``[1]``, multiplies gradients.
        skip: ``[1]``; nonzero leaves all buffers as they are.
    """
    assert flat.exp_avg is not None
    assert flat.exp_avg_sq is not None
    ops.adamw(
        run.of(flat.master),
        run.of(flat.exp_avg),
        run.of(flat.exp_avg_sq),
        run.of(gradient_of(flat)),
        None if flat.shard is flat.master else run.of(flat.shard),
        **options,
        step=run.step,
        grad_scale=scale,
        skip=skip,
    )
