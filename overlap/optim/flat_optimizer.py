"""What optimizers over flats share: whose parameters they take, clipping, loss scale, skipped steps, state by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from overlap import _compat
from overlap.errors import ConfigError, message
from overlap.optim.chosen import Chosen, Share, home, is_inert, not_sharded
from overlap.optim.clip import check_max_norm, refuse_nonfinite
from overlap.optim.loss_scale import LossScaler
from overlap.optim.members import Members
from overlap.optim.moments import Moments
from overlap.optim.norm import global_norm
from overlap.optim.outcome import Outcome, Pending, known_at_once
from overlap.optim.state import asked_by_torch, load_by_name, state_by_name, state_by_position
from overlap.optim.updates import Group
from overlap.optim.verdict import Verdict, as_factor, as_flag, judge, product
from overlap.shard.flat import Flat
from overlap.shard.param import ShardedParam


class Wanted(NamedTuple):
    """Parameters of one flat that are to be updated, since they have gradients; their groups and states in order."""

    share: Share
    groups: list[Group]
    states: list[dict[str, Any]]


class FlatOptimizer(torch.optim.Optimizer, ABC):
    """Base of optimizers whose state lies in the flats of a sharded model.

    A parameter whose ``.grad`` is None is left alone: weights and state. So are all of them when a step is skipped.

    Attributes:
        grad_norm: as in ``overlap.AdamW``.
        clipped_grad_norm: as in ``overlap.AdamW``.
        skipped: as in ``overlap.AdamW``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        moments: Moments,
        *,
        max_grad_norm: float | None,
        error_if_nonfinite: bool,
    ) -> None:
        """Check parameters and groups, allocate state.

        Args:
            params: as in ``overlap.AdamW``.
            defaults: options of a group that does not say otherwise.
            moments: where the state lies.
            max_grad_norm: as in ``overlap.AdamW``.
            error_if_nonfinite: as in ``overlap.AdamW``.

        Raises:
            ConfigError: a parameter is not from a sharded model, or a value is out of range.
        """
        if max_grad_norm is not None:
            check_max_norm(max_grad_norm, "max_grad_norm")
        self.max_grad_norm, self.error_if_nonfinite = max_grad_norm, error_if_nonfinite
        self.grad_norm: Tensor | None = None
        self.clipped_grad_norm: Tensor | None = None
        self.skipped: Tensor | None = None
        self._skipped_steps = self._taken_steps = 0
        self._moments, self._members = moments, Members()
        self._pending: Pending | None = None
        super().__init__(params, defaults)

    @abstractmethod
    def _update(self, verdict: Verdict, wanted: Sequence[Wanted]) -> list[dict[str, Any]]:
        """Launch the update of all parameters with a gradient; the states whose ``step`` grows if it is taken."""

    @abstractmethod
    def _check_group(self, group: Group) -> None:
        """Refuse a group with a ``ConfigError``: its options, or parameters that they do not fit."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, check its values and allocate its state; one that is refused is not added.

        Raises:
            ConfigError: a parameter is not from a sharded model, or a value is out of range.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            homes = [home(param) for param in group["params"] if not is_inert(param)]
        except ConfigError:
            self.param_groups.pop()
            raise
        for flat, behind in homes:
            if behind.trainable:
                self._moments.give(flat, behind, self.state)

    @_compat.uncompiled
    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grad_scale: Tensor | float | None = None,
        skip: Tensor | bool | None = None,
        scaler: LossScaler | None = None,
    ) -> Any:
        """Update all parameters that have a gradient. No host synchronisation.

        A collective for ``overlap.Muon``; for ``overlap.AdamW`` where it needs the norm.

        Args:
            closure: re-evaluates the model and returns the loss.
            grad_scale: one number, best on the device, that multiplies every gradient (1 / number of tokens); clipping
                sees the scaled gradient.
            skip: one number, best on the device, the same on all ranks; nonzero leaves everything bit-unchanged.
            scaler: whose loss scale the gradients have: it is taken out, and a step with a NaN or Inf on any rank is
                skipped on all of them.

        Returns:
            What ``closure`` returned.

        Raises:
            StateError: a later optimizer has taken over some of the parameters; the norm is not finite, with
                ``error_if_nonfinite`` and no scaler; gradients overflow at the scaler's minimum, if it raises then.
        """
        loss = _evaluate(closure)
        if not self.state and asked_by_torch():
            return loss  # its helpers take a step to see what state there is: reading must change nothing
        self.settle()
        shares = self._shares()
        if shares:
            self._moments.check_newest([share.flat for share in shares])
            chosen = [share.with_gradient() for share in shares]
            scaler = scaler if scaler is not None and scaler.enabled else None
            verdict = self._judge(chosen, grad_scale, skip, scaler)
            states = self._update(verdict, self._wanted(chosen))
            self._count(verdict, states, chosen, scaler, quiet=skip is not None)
        return loss

    def _judge(
        self,
        chosen: Chosen,
        grad_scale: Tensor | float | None,
        skip: Tensor | bool | None,
        scaler: LossScaler | None,
    ) -> Verdict:
        device = _device_of(chosen)
        factor, flag = as_factor(grad_scale, device), as_flag(skip, device)
        if scaler is not None:
            factor = product(scaler.in_force.double().reciprocal().float(), factor)
        if self.max_grad_norm is None and not self.error_if_nonfinite and scaler is None:
            return Verdict(factor, flag)
        norm = global_norm(chosen)
        if scaler is not None:
            scaler.note(norm.bad)
        elif self.error_if_nonfinite:
            refuse_nonfinite(norm, self._params, lambda: f" at update {self._next_update()}")
        return judge(norm, factor, flag, self.max_grad_norm)

    def _wanted(self, chosen: Chosen) -> list[Wanted]:
        groups = [group for group in self.param_groups for _ in group["params"]]
        states = self._states(chosen)
        return [
            Wanted(share, [*map(groups.__getitem__, share.positions)], [*map(states.__getitem__, share.positions)])
            for share in chosen
            if share.params
        ]

    def _states(self, chosen: Chosen) -> list[dict[str, Any]]:
        """Of all parameters as they are counted; begun now for those that were frozen until now."""
        states = self._states_there()
        if all(states):
            return states
        late = [
            (share.flat, behind)
            for share in chosen
            for at, behind in zip(share.positions, share.params, strict=True)
            if not states[at]
        ]
        for flat, behind in late:
            self._state_of(flat, behind)
        return self._states_there() if late else states

    def _states_there(self) -> list[dict[str, Any]]:
        if self._members.are(self.state):  # asking for each takes a hash in Python
            return [*self.state.values()]
        return [self.state.get(param, {}) for param in self._params]

    def _shares(self) -> list[Share]:
        """Of the flats, what is to be trained."""
        found = self._members.find(self._params)
        for param in found.others:
            if not is_inert(param):
                raise not_sharded(param)
        return found.shares

    @property
    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    def _state_of(self, flat: Flat, behind: ShardedParam) -> dict[str, Any]:
        """Its state, begun now if the parameter was frozen until now."""
        if not self.state.get(behind.public):  # asking a defaultdict for it has left an empty one
            self._moments.give(flat, behind, self.state)
        state: dict[str, Any] = self.state[behind.public]
        return state

    # -- counting steps ----------------------------------------------------------------------------------------

    def _count(
        self,
        verdict: Verdict,
        states: list[dict[str, Any]],
        chosen: Chosen,
        scaler: LossScaler | None,
        *,
        quiet: bool,
    ) -> None:
        norm = verdict.norm
        self.grad_norm = None if norm is None else norm.norm.float()
        self.clipped_grad_norm, self.skipped = verdict.clipped, verdict.skip
        if verdict.skip is None:
            self._taken_steps += 1
            for state in states:
                state["step"] += 1
            return
        scale = scaler.in_force if scaler is not None else None
        outcome = Outcome(verdict.skip, norm.values if norm is not None else None, scale)
        self._pending = Pending(outcome, states, self._params, norm.places if norm is not None else (), scaler, quiet)
        if known_at_once(_device_of(chosen)) or (scaler is not None and scaler.near_minimum):
            self.settle()

    def settle(self) -> None:
        """Count the last step, if it was taken. Waits for the device unless that is known already.

        Raises:
            StateError: its gradients overflowed at the minimum of a scaler that raises then.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            numbers = pending.count()
            self._skipped_steps += numbers.skipped
            self._taken_steps += not numbers.skipped
            pending.explain(numbers, self._next_update)

    @property
    def skipped_steps(self) -> int:
        """How many steps this optimizer has skipped since it was built; waits for the device."""
        self.settle()
        return self._skipped_steps

    def _next_update(self) -> int:
        """For messages: by the steps that parameters have seen, else since this optimizer was built."""
        return 1 + max((state["step"] for state in self.state.values() if "step" in state), default=self._taken_steps)

    # -- the rest of an optimizer ------------------------------------------------------------------------------

    @_compat.uncompiled
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients, also those that ``no_sync`` has accumulated and no backward has reduced yet."""
        if set_to_none:
            for param in self._params:
                param.grad = None
        else:
            super().zero_grad(set_to_none)
        for share in self._shares():
            for behind in share.params:
                behind.discard = True

    def state_dict(self) -> dict[str, Any]:
        """State per parameter name: ``{"state": {fqn: {...}}, "param_groups": [{..., "params": [fqn]}]}``.

        Reading it changes nothing. Tensors are views of the live state: copy them to keep a snapshot. The helpers of
        ``torch.distributed.checkpoint.state_dict`` get numbers for names, as from any optimizer, and give names again.
        """
        self.settle()
        return state_by_position(self) if asked_by_torch() else state_by_name(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave, by name; groups by position.

        Raises:
            ConfigError: names, groups or shapes differ, or a value is out of range; nothing has been changed then.
        """
        self.settle()
        load_by_name(self, state_dict, self._check_group, self._begin, self._moments.blank)

    def _begin(self, param: Tensor) -> dict[str, Any]:
        return self._state_of(*home(param))


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _device_of(chosen: Chosen) -> torch.device:
    return chosen[0].flat.master.device


def check_at_least(name: str, value: Any, least: float) -> None:
    """Refuse an option below its least value, and NaN.

    Raises:
        ConfigError: it is.
    """
    if not float(value) >= least:
        raise ConfigError(message(name, f"be at least {least:g}", value, "check the optimizer's arguments"))
