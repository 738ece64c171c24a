"""Meta-device modules: give their tensors memory and values, unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from overlap import _compat
from overlap.errors import ConfigError, message


def materialize(
    modules: Sequence[tuple[str, nn.Module]],
    device: torch.device,
    init_fn: Callable[[nn.Module], None] | None,
) -> None:
    """Give meta tensors of these modules memory on ``device`` and fill them; move what already has memory.

    Only the tensors a module owns itself are touched, so memory holds one unit at a time when units are sharded
    bottom-up.

    Args:
        modules: named modules of one unit.
        device: where the weights shall live.
        init_fn: called with each module that owned a meta tensor; None calls its ``reset_parameters()``.

    Raises:
        ConfigError: a module owns meta tensors and nothing fills them, or a sharded one beside them. Left alone they
            would be garbage.
    """
    for name, module in modules:
        if any(tensor.is_meta for tensor in _own_tensors(module)):
            _refuse_sharded(name, module)
            initialise = init_fn or _reset_of(name, module)
            module.to_empty(device=device, recurse=False)
            with torch.no_grad():
                _poison(module)
                initialise(module)
            _check_filled(name, module)
        else:
            _move(module, device)


def _own_tensors(module: nn.Module) -> Iterable[Tensor]:
    return chain(module.parameters(recurse=False), module.buffers(recurse=False))


def _reset_of(name: str, module: nn.Module) -> Callable[[nn.Module], None]:
    if not callable(getattr(module, "reset_parameters", None)):
        raise ConfigError(
            message(
                f"module {name!r} ({type(module).__name__}) on the meta device",
                "have reset_parameters() or be filled by init_fn",
                "neither",
                "define reset_parameters(), also for its buffers, or pass init_fn",
            )
        )
    return lambda built: built.reset_parameters()  # type: ignore[operator]


def _refuse_sharded(name: str, module: nn.Module) -> None:
    if any(isinstance(tensor, DTensor) for tensor in _own_tensors(module)):
        rule, cure = "hold no sharded parameter", "tie weights before sharding either module"
        raise ConfigError(message(f"module {name!r} on the meta device", rule, "a DTensor", cure))


def _poison(module: nn.Module) -> None:
    """NaN in everything floating, so that what the initialiser forgets (a RoPE table, say) is noticed."""
    for tensor in _own_tensors(module):
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))


def _check_filled(name: str, module: nn.Module) -> None:
    for owned, tensor in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
        if tensor.is_floating_point() and torch.isnan(tensor).any():
            where = f"{name}.{owned}" if name else owned
            raise ConfigError(
                message(
                    f"tensor {where!r}",
                    "be filled by the initialiser",
                    "uninitialised values",
                    "set it there too",
                )
            )


def _move(module: nn.Module, device: torch.device) -> None:
    if any(tensor.device != device for tensor in _own_tensors(module)):
        _compat.move_own_tensors(module, device)
