"""``.grad`` of a public parameter around a backward.

    keep         what is shown stays in the flat, where reductions add to it
    make_room    before a reduction that adds
    publish      the sum is shown; hooks of the parameter run, once, on what this backward has reduced

A loss may use a public parameter directly, say for a penalty on all weights. Autograd then leaves a gradient on it: it
must not be added in place to memory that a lane writes to, so it is caught beside what is shown, and added at the end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from overlap import _compat
from overlap.shard.param import ShardedParam


class _Beside:
    """Runs before autograd adds to ``.grad`` of a public parameter: lets it start from None instead."""

    def __init__(self, param: ShardedParam) -> None:
        self._param = weakref.ref(param)

    def __call__(self, grad: Tensor) -> None:
        param = self._param()
        if param is not None and param.reducing and param.public.grad is param.gradient:
            param.hidden = True
            param.public.grad = None


def watch_direct(param: ShardedParam) -> None:
    """Catch gradients that reach a public parameter directly."""
    if not any(isinstance(hook, _Beside) for hook in _compat.gradient_hooks(param.public)):
        _compat.on_gradient(param.public, _Beside(param))


def keep(params: Sequence[ShardedParam]) -> None:
    """A backward begins: take a gradient that is shown into our memory, if the user has put another in its place."""
    with _compat.fast_attributes():
        shown = [param.public.grad is not None for param in params]
    for param, is_shown in zip(params, shown, strict=True):
        param.arrived, param.reducing = False, True
        param.kept = is_shown and param.take_shown_gradient()


def make_room(param: ShardedParam) -> None:
    """Let a reduction add: to zeros where nothing is kept, or where hooks must see the reduced part alone."""
    if param.kept and _hooks(param):
        param.aside = _rows(param).clone()
    if not param.kept or param.aside is not None:
        _rows(param).zero_()


def publish(params: Sequence[ShardedParam]) -> None:
    """Show gradients, after the parameters' hooks have seen them."""
    hooked = _compat.have_hooks([param.public for param in params], beside=1)  # one is ours
    apart = []
    with _compat.fast_attributes():
        for param, watched in zip(params, hooked, strict=True):
            if not param.used and not param.kept:
                param.reducing = False
            elif watched or param.kept or param.public.grad is not None:
                apart.append((param, watched and param.used))
            else:  # nothing was shown before
                param.public.grad = param.gradient
                param.used = param.reducing = False
    with torch.no_grad():
        for param, watched in apart:
            _publish(param, watched)
            param.reducing = False


def _publish(param: ShardedParam, hooked: bool) -> None:
    if hooked:
        for hook in _hooks(param):
            assert param.gradient is not None
            changed = hook(param.gradient)
            if changed is not None:
                _rows(param).copy_(param.rows_of(changed))
    _bring_together(param)
    if hooked:
        for accumulated in _compat.accumulation_hooks(param.public):
            accumulated(param.public)
    param.used = False


def restore(params: Iterable[ShardedParam]) -> None:
    """A backward has reduced nothing, or has failed: show what was shown, unless it has been dropped since."""
    with torch.no_grad():
        for param in params:
            _restore(param)


def _restore(param: ShardedParam) -> None:
    if param.hidden and param.public.grad is not None:
        _bring_together(param)
    elif param.aside is not None and param.public.grad is param.gradient:
        _rows(param).add_(param.aside)
    param.hidden = param.kept = param.reducing = False
    param.aside = None


def _bring_together(param: ShardedParam) -> None:
    """Add what was set aside for hooks, and what autograd has left on the public parameter, and show the sum."""
    if param.aside is not None:
        _rows(param).add_(param.aside)
        param.aside = None
    direct = param.public.grad
    if direct is not None and direct is not param.gradient:
        _rows(param).add_(param.rows_of(direct))
    if direct is not param.gradient:
        param.public.grad = param.gradient
    param.kept = param.hidden = False


def _rows(param: ShardedParam) -> Tensor:
    assert param.gradient is not None
    return param.gradient.to_local()


def _hooks(param: ShardedParam) -> list[Callable[[Tensor], Tensor | None]]:
    return [hook for hook in _compat.gradient_hooks(param.public) if not isinstance(hook, _Beside)]
