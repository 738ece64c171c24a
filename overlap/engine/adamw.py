"""AdamW over flats: one fused launch per unit and parameter group.

    for each flat, each run of parameters that share group and step:
        master, m, v, grad  --ops.adamw-->  master, m, v, and the gather's input in compute dtype

Source: Loshchilov & Hutter 2019, algorithm 2; formula and order of operations as ``torch.optim.AdamW``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from overlap import ops
from overlap.engine.norm import (
    Chosen,
    adopt_foreign_gradients,
    check_max_norm,
    chosen_of,
    clip_coefficient,
    global_norm,
    home,
)
from overlap.engine.optimizer_state import load_by_name, state_by_name
from overlap.errors import ConfigError, StateError, message
from overlap.shard.flat import Flat
from overlap.shard.param import ShardedParam


@dataclass(slots=True)
class _Run:
    """Consecutive parameters of one flat with the same group and step."""

    group: dict[str, Any]
    step: int
    start: int
    end: int

    def nbytes(self, flat: Flat) -> int:
        """Memory traffic of one update: master and moments read and written, gradient read, shard written."""
        shard = 0 if flat.shard is flat.master else flat.shard.itemsize
        grad = flat.grad.itemsize if flat.grad is not None else 0
        return (self.end - self.start) * (2 * 3 * flat.master.itemsize + grad + shard)


class AdamW(torch.optim.Optimizer):
    """``torch.optim.AdamW`` for a model sharded by overlap.

    ``state[p]`` holds ``step`` (a host integer), ``exp_avg`` and ``exp_avg_sq`` (DTensors, views of the flat moments).
    A parameter whose ``.grad`` is None is left alone: weights, moments and step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        max_grad_norm: float | None = None,
        maximize: bool = False,
    ) -> None:
        """Allocate moments.

        Args:
            params: public parameters of one sharded model, or groups of them as torch takes them.
            lr: learning rate; per group.
            betas: decay of first and second moment; per group.
            eps: added to the denominator; per group.
            weight_decay: decoupled; per group.
            max_grad_norm: clip the global norm of all groups inside the update; None does not clip.
            maximize: ascend; per group.

        Raises:
            ConfigError: a parameter is not from a sharded model, or a value is out of range.
        """
        if max_grad_norm is not None:
            check_max_norm(max_grad_norm, "max_grad_norm")
        self.max_grad_norm = max_grad_norm
        self.grad_norm: Tensor | None = None
        self._moments: dict[int, Tensor] = {}  # of each flat, as this optimizer knows them
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, check its values and allocate its moments."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _check_group(group)
        for flat, behind in map(home, group["params"]):
            if behind.trainable:
                if flat.exp_avg is None or behind.has_moments:
                    self._renew_moments(flat)
                self._give_moments(flat, behind)

    def _renew_moments(self, flat: Flat) -> None:
        """Those that are there, if any, belong to an optimizer built before: it keeps them, but may not step again."""
        flat.exp_avg, flat.exp_avg_sq = torch.zeros_like(flat.master), torch.zeros_like(flat.master)
        for behind in flat.params:
            behind.has_moments = False
            if behind.public in self.state:
                self._give_moments(flat, behind)

    def _give_moments(self, flat: Flat, behind: ShardedParam) -> None:
        assert flat.exp_avg is not None
        assert flat.exp_avg_sq is not None
        behind.has_moments = True
        self._moments[id(flat)] = flat.exp_avg
        self.state[behind.public] = {
            "step": 0,
            "exp_avg": flat.rows_of(flat.exp_avg, behind),
            "exp_avg_sq": flat.rows_of(flat.exp_avg_sq, behind),
        }

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grad_scale: Tensor | None = None,
        skip: Tensor | None = None,
    ) -> Any:
        """Update all parameters that have a gradient. With ``max_grad_norm`` a collective; no host synchronisation.

        Args:
            closure: re-evaluates the model and returns the loss.
            grad_scale: fp32 ``[1]`` on the device, multiplies every gradient (1 / loss scale); clipping sees the
                scaled gradient.
            skip: ``[1]`` on the device; nonzero leaves weights and moments bit-unchanged. The step count goes on.

        Returns:
            What ``closure`` returned.

        Raises:
            StateError: a later optimizer has taken over some of the parameters.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        chosen = chosen_of(param for group in self.param_groups for param in group["params"])
        self._check_newest(chosen)
        adopt_foreign_gradients(chosen)
        scale = self._clip(chosen, grad_scale) if self.max_grad_norm is not None and chosen else grad_scale
        runs = self._runs()
        for flat in chosen:
            for run in runs.get(flat, ()):
                flat.in_order("update", run.nbytes(flat), partial(_update, flat, run, scale, skip))
                flat.updated = True
        return loss

    def _check_newest(self, chosen: Chosen) -> None:
        if any(self._moments.get(id(flat), flat.exp_avg) is not flat.exp_avg for flat in chosen):
            raise StateError(
                message(
                    "optimizer AdamW",
                    "be the last one built over its parameters",
                    "parameters whose moments a later one holds",
                    "step the later one, or load this one's state_dict into it",
                )
            )

    def _clip(self, chosen: Chosen, grad_scale: Tensor | None) -> Tensor:
        """The factor that unscales and clips; remembers the norm before clipping."""
        assert self.max_grad_norm is not None
        norm = global_norm(chosen)
        if grad_scale is not None:
            norm[0] *= grad_scale[0]
        self.grad_norm = norm[:1].float()
        coefficient = clip_coefficient(norm, self.max_grad_norm)
        return coefficient if grad_scale is None else coefficient * grad_scale

    def _runs(self) -> dict[Flat, list[_Run]]:
        """Advance step counts and join neighbours: usually one run per flat and group."""
        runs: dict[Flat, list[_Run]] = {}
        for group, flat, behind in self._with_gradient():
            state = self.state[behind.public]
            state["step"] += 1
            _extend(runs.setdefault(flat, []), behind, group, state["step"])
        return runs

    def _with_gradient(self) -> list[tuple[dict[str, Any], Flat, ShardedParam]]:
        """Parameters to update with their group and flat, in layout order."""
        chosen = [
            (group, *home(param)) for group in self.param_groups for param in group["params"] if param.grad is not None
        ]
        return sorted(chosen, key=lambda found: found[2].layout.offset)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients, also those that ``no_sync`` has accumulated and no backward has reduced yet."""
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            for param in group["params"]:
                home(param).param.discard = True

    def state_dict(self) -> dict[str, Any]:
        """State per parameter name: ``{"state": {fqn: {...}}, "param_groups": [{..., "params": [fqn]}]}``.

        Reading it changes nothing. Tensors are views of the live state: copy them to keep a snapshot.
        """
        return state_by_name(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave, by name; groups by position.

        Raises:
            ConfigError: names, groups or shapes differ, or a value is out of range; nothing has been changed then.
        """
        load_by_name(self, state_dict, _check_group)


def _extend(runs: list[_Run], behind: ShardedParam, group: dict[str, Any], step: int) -> None:
    start = behind.layout.offset
    end = start + behind.layout.chunk
    if runs and runs[-1].group is group and runs[-1].step == step and start - runs[-1].end < _GAP:
        runs[-1].end = end
    else:
        runs.append(_Run(group, step, start, end))


# Alignment padding between neighbours is zero in every buffer, and an update leaves it zero.
_GAP = 128


def _update(flat: Flat, run: _Run, scale: Tensor | None, skip: Tensor | None) -> None:
    group = run.group
    buffers = (flat.master, flat.exp_avg, flat.exp_avg_sq, flat.grad)
    master, exp_avg, exp_avg_sq, grad = (buffer[run.start : run.end] for buffer in buffers if buffer is not None)
    shard = None if flat.shard is flat.master else flat.shard[run.start : run.end]
    ops.adamw(
        master,
        exp_avg,
        exp_avg_sq,
        grad,
        shard,
        lr=float(group["lr"]),
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        step=run.step,
        grad_scale=scale,
        skip=skip,
        maximize=group["maximize"],
    )


def _check_group(group: dict[str, Any]) -> None:
    low = {"lr": 0.0, "eps": 0.0, "weight_decay": 0.0}
    for name, least in low.items():
        if not float(group[name]) >= least:
            raise ConfigError(message(name, f"be at least {least:g}", group[name], "check the optimizer's arguments"))
    for number, beta in enumerate(group["betas"]):
        if not 0.0 <= beta < 1.0:
            raise ConfigError(message(f"betas[{number}]", "be in [0, 1)", beta, "check the optimizer's arguments"))
