"""How a loss scale follows what steps find: the rule, without the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from overlap.errors import ConfigError, message

AT_MINIMUM = ("warn", "raise")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalePolicy:
    """See ``overlap.LossScaler`` for the fields."""

    growth_factor: float
    backoff_factor: float
    growth_interval: int
    min_scale: float
    max_scale: float
    on_min_scale: Literal["warn", "raise"]

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: naming the first field that is wrong.
        """
        _check("growth_factor", self.growth_factor, "be at least 1", kept=self.growth_factor >= 1)
        _check("backoff_factor", self.backoff_factor, "be above 0 and below 1", kept=0 < self.backoff_factor < 1)
        _check("growth_interval", self.growth_interval, "be at least 1", kept=self.growth_interval >= 1)
        _check("min_scale", self.min_scale, "be above 0", kept=self.min_scale > 0)
        allowed = self.on_min_scale in AT_MINIMUM
        _check("on_min_scale", self.on_min_scale, f"be one of {', '.join(AT_MINIMUM)}", kept=allowed)

    def check(self, scale: float) -> None:
        """Refuse a scale outside of the limits.

        Raises:
            ConfigError: it is.
        """
        rule = f"be from min_scale, {self.min_scale:g}, to max_scale, {self.max_scale:g}"
        _check("scale", scale, rule, kept=self.min_scale <= scale <= self.max_scale)

    def following(self, scale: Tensor, streak: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """The next scale and streak, on the device.

        Args:
            scale: fp32 ``[1]``.
            streak: int32 ``[1]``, finite steps in a row.
            found: bool ``[1]``, whether the last step was not one.
        """
        streak = (streak + 1).masked_fill(found, 0)
        full = streak >= self.growth_interval
        grown = (scale * self.growth_factor).clamp(max=self.max_scale)
        backed_off = (scale * self.backoff_factor).clamp(min=self.min_scale)
        return torch.where(found, backed_off, torch.where(full, grown, scale)), streak.masked_fill(full, 0)


def _check(name: str, value: object, rule: str, *, kept: bool) -> None:
    if not kept:
        raise ConfigError(message(name, rule, value, "check the scaler's arguments, or what was loaded"))
