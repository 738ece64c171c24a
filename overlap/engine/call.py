"""Calling a sharded module: its forward, or another method that was registered, with full parameters.

enter_forward -> the module's own code (with the user's hooks) -> exit_forward, backward triggers on outputs
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from overlap.engine.late import refuse_late
from overlap.engine.outputs import watch_outputs
from overlap.engine.registry import ROOT, UNIT, Sharded, engine_of, unit_of
from overlap.engine.tree import cast_floating
from overlap.errors import ConfigError, message


def run_through_engine(module: Sharded, call: Callable[..., Any], args: Any, kwargs: Any, method: str = "") -> Any:
    """Call something of a sharded module with full parameters, as its forward is called."""
    unit = unit_of(module)
    engine = engine_of(module)
    if engine.by_hand.summoned:  # the parameters that are registered are full and plain
        return call(*args, **kwargs)
    if unit.options.param_dtype is not None and unit.options.cast_forward_inputs:
        args, kwargs = cast_floating((args, kwargs), unit.options.param_dtype)
    if torch.is_grad_enabled() and not engine.passes.running:
        refuse_late(module.__dict__[ROOT](), engine.units)
    try:
        engine.passes.enter_forward(unit, method)
        outputs = call(*args, **kwargs)
        engine.passes.exit_forward(unit)
    except BaseException:
        engine.passes.interrupt(unit)
        raise
    if unit.options.output_dtype is not None:
        outputs = cast_floating(outputs, unit.options.output_dtype)
    if torch.is_grad_enabled():
        watch_outputs(outputs, (*args, *kwargs.values()), unit, engine.passes.backward_trigger(unit))
    return outputs


def register_forward_method(module: nn.Module | FSDPModule, method_name: str) -> None:
    """Let a method other than ``forward`` (``generate``, ``encode``) run with full parameters, too.

    As ``torch.distributed.fsdp.register_fsdp_forward_method``, which works as well. For a module that is not sharded it
    does nothing, so that one program serves both.

    Args:
        module: a sharded module.
        method_name: of a method of its class.

    Raises:
        ConfigError: its class has no such method.
    """
    if UNIT not in module.__dict__:
        return
    cls = type(module)
    method = getattr(cls, method_name, None)
    if not callable(method):
        got, cure = f"no {method_name!r}", "name a method of its class"
        raise ConfigError(message(f"class {cls.__name__}", "have the method", got, cure))

    @wraps(method)
    def through_engine(self: Sharded, *args: Any, **kwargs: Any) -> Any:
        return run_through_engine(self, partial(method, self), args, kwargs, method_name)

    # On the class, which this module has for itself: a bound method on the module would keep it alive.
    setattr(cls, method_name, through_engine)
