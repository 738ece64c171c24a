"""Dynamic loss scaling that stays on the device: scale, growth and skipped steps without a host synchronisation.

    scale(loss)   first takes what steps have found: found -> scale * backoff; growth_interval without -> scale * growth
                  loss * scale          --backward-->  scaled gradients, reduced
    step          flag of the norm over all ranks, and 1 / scale: into the update itself

Source: Micikevicius et al., "Mixed precision training" (2018); growth and backoff as ``torch.amp.GradScaler``.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from overlap.errors import ConfigError, StateError, message
from overlap.optim.scale_policy import ScalePolicy

_LOADED = ("growth_factor", "backoff_factor", "growth_interval")


class LossScaler:
    """Keeps fp16 gradients in range, for overlap's optimizers. With others use ``torch.amp.GradScaler``.

        scaler = overlap.LossScaler()
        scaler.scale(loss).backward()
        optimizer.step(scaler=scaler)  # or scaler.step(optimizer)

    A step whose gradients are not finite on any rank is skipped on all of them. The scale changes when the next loss is
    scaled (or at ``update()``), not before: so several losses and several optimizers may share a scaler between two
    changes. Compute the loss in fp32: a loss in fp16 cannot be multiplied by 65536.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
        on_min_scale: Literal["warn", "raise"] = "warn",
        enabled: bool = True,
    ) -> None:
        """Set the policy; memory is taken on the device of the first loss.

        Args:
            init_scale: first scale.
            growth_factor: multiplies the scale after ``growth_interval`` steps in a row with finite gradients.
            backoff_factor: multiplies the scale after a step with others.
            growth_interval: steps.
            min_scale: the scale does not fall below it.
            max_scale: the scale does not rise above it.
            on_min_scale: what happens when gradients overflow at ``min_scale``: a warning on the first rank, or
                ``StateError`` on all, with step, norm and first bad gradient; the step is skipped either way, so state
                can be saved. Where the scale may be that low, each step waits for the device.
            enabled: False lets losses and steps through as they are.

        Raises:
            ConfigError: a value out of range.
        """
        self.policy = ScalePolicy(
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            min_scale=min_scale,
            max_scale=max_scale,
            on_min_scale=on_min_scale,
        )
        self.policy.check(init_scale)
        self.enabled = enabled
        self._scale = torch.tensor([init_scale], dtype=torch.float32)
        self._streak = torch.zeros(1, dtype=torch.int32)  # finite steps in a row
        self._found: Tensor | None = None  # bool [1]: what steps since the last change have met
        self._used = False  # a loss has been scaled since the last change
        self._known_scale = float(init_scale)

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or each of a list or tuple of them, by the scale.

        Raises:
            ConfigError: something else than tensors.
        """
        if not self.enabled:
            return outputs
        self.update()
        self._used = True
        return self._scaled(outputs)

    def _scaled(self, outputs: Any) -> Any:
        if isinstance(outputs, Tensor):
            if self._scale.device != outputs.device:
                self._scale, self._streak = self._scale.to(outputs.device), self._streak.to(outputs.device)
            return outputs * self._scale[0]
        if not isinstance(outputs, list | tuple):
            got, cure = type(outputs).__name__, "pass the loss"
            raise ConfigError(message("what is scaled", "be a tensor, or a list or tuple of them", got, cure))
        return type(outputs)(map(self._scaled, outputs))

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step(*args, scaler=self, **kwargs)``.

        Raises:
            ConfigError: the optimizer is not overlap's.
        """
        step: Any = optimizer.step
        if not self.enabled:
            return step(*args, **kwargs)
        if "scaler" not in inspect.signature(step).parameters:
            cure = "use torch.amp.GradScaler with it, which asks all ranks"
            raise ConfigError(message("optimizer", "be one of overlap's", type(optimizer).__name__, cure))
        return step(*args, scaler=self, **kwargs)

    def update(self) -> None:
        """Let the scale follow what steps have found since it last did; nothing where there was no step."""
        if self._found is not None:
            self._scale, self._streak = self.policy.following(self._scale, self._streak, self._found)
            self._found, self._used = None, False

    def get_scale(self) -> float:
        """The scale of the latest loss; waits for the device."""
        return self._scale.item()

    def state_dict(self) -> dict[str, Any]:
        """What ``torch.amp.GradScaler`` would give, under the same names; waits for the device."""
        if not self.enabled:
            return {}
        scale, streak = self._scale, self._streak
        if self._found is not None:
            scale, streak = self.policy.following(scale, streak, self._found)
        return {
            "scale": scale.item(),
            **{name: getattr(self.policy, name) for name in _LOADED},
            "_growth_tracker": int(streak.item()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict``, or that of a ``torch.amp.GradScaler``, gave; limits stay this scaler's.

        Raises:
            ConfigError: an entry is missing or out of range.
        """
        if not self.enabled:
            return
        absent = [name for name in ("scale", *_LOADED) if name not in state_dict]
        if absent:
            raise ConfigError(message(absent[0], "be in the state_dict", "nothing", "pass what state_dict() gave"))
        policy, scale = replace(self.policy, **{name: state_dict[name] for name in _LOADED}), state_dict["scale"]
        policy.check(scale)
        self.policy, self._known_scale = policy, float(scale)
        self._scale = torch.full_like(self._scale, scale)
        self._streak = torch.full_like(self._streak, state_dict.get("_growth_tracker", 0))
        self._found, self._used = None, False

    # -- for optimizers ----------------------------------------------------------------------------------------

    @property
    def in_force(self) -> Tensor:
        """Fp32 ``[1]``: what the gradients at hand were scaled with.

        Raises:
            StateError: no loss has been scaled since the scale last changed.
        """
        if not self._used:
            cure = "call scaler.scale(loss).backward() before the step, and update() after all steps"
            raise StateError(message("gradients", "be scaled with this scaler", "no loss since its last change", cure))
        return self._scale

    def note(self, bad: Tensor) -> None:
        """Take in what a step has found: ``[1]`` on the device, above 0 where gradients were not finite."""
        found = bad > 0
        self._found = found if self._found is None else self._found | found

    def observe(self, scale: float) -> None:
        """Take in, on the host, the scale that a step had."""
        self._known_scale = scale

    @property
    def near_minimum(self) -> bool:
        """Whether the scale in force may be ``min_scale``: then an optimizer asks at once how its step went."""
        return self._known_scale * self.policy.backoff_factor <= self.policy.min_scale

    def overflowed(self, scale: float, what: Callable[[], str], *, first_rank: bool) -> None:
        """Gradients were not finite, which is news at ``min_scale`` alone: the scale cannot follow.

        Args:
            scale: in force.
            what: says step, norm and name of the first bad gradient; a collective.
            first_rank: the one that warns.

        Raises:
            StateError: with ``on_min_scale="raise"``.
        """
        if scale > self.policy.min_scale:
            return
        cure = "look for NaN in its inputs, lower the learning rate, or lower min_scale"
        text = message("gradients", f"be finite at min_scale {self.policy.min_scale:g}", what(), cure)
        if self.policy.on_min_scale == "raise":
            raise StateError(text)
        if first_rank:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
