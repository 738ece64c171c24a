"""The launches of one step: one per run of neighbours in a flat that share group and step, usually one per flat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from overlap.ops.coefficients import AdamWCoefficients, adamw_coefficients
from overlap.ops.face import Face
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

    def of(self, buffer: Tensor | None) -> Tensor | None:
        """This part of one of the flat's buffers."""
        return None if buffer is None else buffer.narrow(0, self.start, self.end - self.start)

    def nbytes(self, flat: Flat) -> int:
        """Memory traffic of one update: master and moments read and written, gradient read, shard written."""
        shard = 0 if flat.shard is flat.master else flat.shard.itemsize
        grad = flat.grad.itemsize if flat.grad is not None else 0
        return (self.end - self.start) * (2 * 3 * flat.master.itemsize + grad + shard)


def runs_of(share: Share, groups: Sequence[Group], taken: Sequence[int]) -> list[Run]:
    """Join neighbours.

    Args:
        share: what is to be updated.
        groups: of each parameter.
        taken: how many steps each has seen.
    """
    if share.whole and len({*map(id, groups)}) == 1 == len({*taken}):
        return [Run(groups[0], taken[0] + 1, 0, share.flat.layout.shard_numel)]
    layout = share.flat.layout
    starts = [place.offset for place in layout.params]
    ends = dict(zip(starts, [*starts[1:], layout.shard_numel], strict=True))
    runs: list[Run] = []
    members = zip(share.params, groups, taken, strict=True)
    for behind, group, before in sorted(members, key=lambda each: each[0].layout.offset):
        start, step = behind.layout.offset, before + 1
        if runs and runs[-1].group is group and runs[-1].step == step and start == runs[-1].end:
            runs[-1].end = ends[start]
        else:
            runs.append(Run(group, step, start, ends[start]))
    return runs


class Rule(NamedTuple):
    """What the launches of one group and step have in common."""

    coefficients: AdamWCoefficients
    maximize: bool


def rule_of(group: Group, step: int) -> Rule:
    """Read a group; its rate may be a tensor.

    Args:
        group: whose options hold.
        step: number of this step, from 1.

    Raises:
        ConfigError: an option has become one that no update can have.
    """
    names = ("lr", "eps", "weight_decay")
    lr, eps, weight_decay = (float(group[name]) for name in names)
    beta1, beta2 = map(float, group["betas"])
    return Rule(adamw_coefficients(lr, beta1, beta2, eps, weight_decay, step), group["maximize"])


def update(face: Face, flat: Flat, run: Run, rule: Rule, scale: Tensor | None, skip: Tensor | None) -> None:
    """Launch AdamW over one run: as ``ops.adamw``, with coefficients that many launches have in common.

    Args:
        face: of the flat's device.
        flat: its buffers.
        run: which part of them.
        rule: of its group and step.
        scale: fp32 ``[1]``, multiplies gradients.
        skip: ``[1]``; nonzero leaves all buffers as they are.
    """
    input_of_gather = None if flat.shard is flat.master else flat.shard
    buffers: Iterable[Any] = (flat.master, flat.exp_avg, flat.exp_avg_sq, gradient_of(flat), input_of_gather)
    if run.end - run.start != flat.layout.shard_numel:
        buffers = map(run.of, buffers)
    master, exp_avg, exp_avg_sq, grad, shard = buffers
    face.adamw(
        master, exp_avg, exp_avg_sq, grad, shard,
        rule.coefficients, scale, skip, rule.maximize, None, 0, run.step,
    )  # fmt: skip
