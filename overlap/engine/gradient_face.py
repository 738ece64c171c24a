"""``.grad`` of a public parameter around a backward.

    hide         what is shown goes into the flat and out of autograd's sight: a lane will write to it
    make_room    before a reduction that adds to it
    publish      the sum is shown; hooks of the parameter run, once, on what this backward has reduced

A loss may use a public parameter directly, say for a penalty on all weights. Autograd then leaves a gradient on it,
which is added.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from overlap import _compat
from overlap.shard.param import ShardedParam


def hide(param: ShardedParam) -> None:
    """Keep a gradient that is shown, in our memory; also one that the user put in place of ours."""
    shown = param.public.grad
    param.kept = shown is not None
    if shown is not None:
        if shown is not param.gradient:
            _rows(param).copy_(local_of(shown, param))
        param.public.grad = None


def make_room(param: ShardedParam) -> None:
    """Let a reduction add: to zeros where nothing is kept, or where hooks must see the reduced part alone."""
    if param.kept and _compat.gradient_hooks(param.public):
        param.aside = _rows(param).clone()
    if not param.kept or param.aside is not None:
        _rows(param).zero_()


@torch.no_grad()
def publish(param: ShardedParam) -> None:
    """Show the gradient, after the parameter's hooks have seen it."""
    if param.used:
        _run_hooks(param)
    _add_kept(param)
    param.public.grad = param.gradient
    if param.used:
        for hook in _compat.accumulation_hooks(param.public):
            hook(param.public)
    param.used = param.kept = False


@torch.no_grad()
def restore(param: ShardedParam) -> None:
    """Show what was kept, where nothing was reduced."""
    if param.kept:
        _add_kept(param)
        param.public.grad = param.gradient
        param.kept = False


def local_of(grad: Tensor, param: ShardedParam) -> Tensor:
    """This rank's rows of a gradient that somebody else has made."""
    if not isinstance(grad, DTensor):
        return grad
    assert param.gradient is not None
    if grad.placements != param.gradient.placements:
        grad = grad.redistribute(placements=param.gradient.placements)
    return grad.to_local()


def _rows(param: ShardedParam) -> Tensor:
    assert param.gradient is not None
    return param.gradient.to_local()


def _add_kept(param: ShardedParam) -> None:
    """Add what was set aside for hooks, and what autograd has left on the public parameter meanwhile."""
    if param.aside is not None:
        _rows(param).add_(param.aside)
        param.aside = None
    direct = param.public.grad
    if direct is not None:
        _rows(param).add_(local_of(direct, param))


def _run_hooks(param: ShardedParam) -> None:
    assert param.gradient is not None
    for hook in _compat.gradient_hooks(param.public):
        changed = hook(param.gradient)
        if changed is not None:
            _rows(param).copy_(local_of(changed, param))
