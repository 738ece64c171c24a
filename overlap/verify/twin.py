"""The unsharded model, trained as the engine promises to train the sharded one.

    masters  --cast-->  module's parameters  --forward, backward-->  gradients  --mean over ranks-->  masters.grad

Each rank has a whole one and feeds it the rank's own batch; the mean of all ranks' gradients makes it the model that
one process would have trained on all batches. Where all is fp32 a master is the module's own parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from overlap import _compat
from overlap.config import ShardOptions
from overlap.engine.tree import cast_floating


class Twin:
    """The module in compute dtype, and its weights in fp32."""

    def __init__(self, module: nn.Module, options: ShardOptions) -> None:
        """Take over a module with its initial values in place."""
        self.module = module
        self.arrived: list[str] = []
        """Parameters in the order in which the latest backward finished their gradients."""
        self._working = dict(module.named_parameters())
        self.masters = {name: _master(param, options) for name, param in self._working.items()}
        self.gradient_dtype = torch.float32
        """Of the gradients that the optimizer reads."""
        for name, param in self._working.items():
            if param.requires_grad:
                _compat.on_accumulated(param, partial(self._arrive, name))

    def refresh(self) -> None:
        """Bring compute up to date with the masters."""
        with torch.no_grad():
            for name, param in self._working.items():
                if self.masters[name] is not param:
                    param.copy_(self.masters[name])

    def take_gradients(self) -> dict[str, Tensor | None]:
        """This rank's gradients, in compute dtype; the module forgets them."""
        taken = {name: param.grad for name, param in self._working.items()}
        for param in self._working.values():
            param.grad = None
        self.arrived.clear()
        return taken

    def give_gradients_in(self, dtype: torch.dtype) -> None:
        """Let the optimizer read gradients of another dtype than fp32."""
        self.gradient_dtype = dtype
        for name, master in self.masters.items():
            if master is not self._working[name] and master.requires_grad:
                master.grad_dtype = dtype

    def _arrive(self, name: str, param: Tensor) -> None:
        self.arrived.append(name)


def _master(param: nn.Parameter, options: ShardOptions) -> nn.Parameter:
    """What the optimizer updates: fp32 for what is trained, else as it is; ``param`` gets its compute dtype."""
    if not param.is_floating_point() or param.numel() == 0:
        return param
    value = param.detach().to(torch.float32 if param.requires_grad else param.dtype)
    compute = options.param_dtype or param.dtype
    if param.dtype != compute:
        param.data = value.to(compute)
    if value.dtype == compute and options.grad_dtype == torch.float32:
        return param
    return nn.Parameter(value.clone(), requires_grad=param.requires_grad)


def cast_inputs(units: Iterable[nn.Module], dtype: torch.dtype) -> None:
    """What ``param_dtype`` does to floating inputs of a unit."""

    def cast(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return cast_floating((args, kwargs), dtype)

    for module in units:
        module.register_forward_pre_hook(cast, with_kwargs=True)


def cast_outputs(units: Iterable[nn.Module], dtype: torch.dtype) -> None:
    """What ``output_dtype`` does to floating outputs of a unit."""
    for module in units:
        module.register_forward_hook(lambda module, args, output: cast_floating(output, dtype))
