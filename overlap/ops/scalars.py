"""Plain numbers: seeds as int64, and checks of whole ones, finite ones, and switches."""

import math
from numbers import Real

from overlap.errors import ConfigError, message


def as_int64(seed: int | None) -> int | None:
    """Return the signed integer that has the 64 bits of ``seed``."""
    return seed - (1 << 64) if seed is not None and seed >= 1 << 63 else seed


def is_whole(value: object) -> bool:
    """Whether ``value`` is an int; True and 1.0 are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_finite(name: str, value: object, least: float = -math.inf) -> None:
    """Refuse anything but a finite number of at least ``least``."""
    if (
        isinstance(value, (float, Real))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and float(value) >= least
    ):
        return
    rule = "be a finite number" if least == -math.inf else f"be a finite number of at least {least:g}"
    raise ConfigError(message(name, rule, value, "pass a Python float"))


def check_decay(name: str, value: object) -> None:
    """Refuse anything but a number from 0 to below 1."""
    if not isinstance(value, (float, Real)) or isinstance(value, bool) or not 0.0 <= float(value) < 1.0:
        raise ConfigError(message(name, "be at least 0 and below 1", value, "choose a decay such as 0.9"))


def check_step(step: int) -> None:
    """Refuse anything but an int that counts from 1."""
    if not is_whole(step) or step < 1:
        raise ConfigError(message("step", "count from 1", step, "pass an int, incremented before the update"))


def check_switch(name: str, value: object) -> None:
    """Refuse anything but True or False."""
    if not isinstance(value, bool):
        raise ConfigError(message(name, "be True or False", value, "pass a bool"))
