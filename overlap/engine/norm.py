"""Global gradient norm and clipping, without a host synchronisation.

Each flat gives a partial sum of squares and a non-finite flag in one pass (``ops.grad_norm``). Partials of sharded
flats are summed over the ranks in rank order; replicated flats are the same everywhere and count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from overlap import ops
from overlap.comm.collective import Communicator
from overlap.engine.mesh import compute_communicator
from overlap.errors import ConfigError, StateError, message
from overlap.shard.flat import Flat, Home, home_of
from overlap.shard.param import ShardedParam
from overlap.shard.piece import Piece

# As torch.nn.utils.clip_grad_norm_: keeps the coefficient finite for a zero norm.
CLIP_EPS = 1e-6


Chosen = dict[Flat, list[ShardedParam]]
"""Parameters that a norm or an update concerns, by flat."""


def chosen_of(params: Iterable[nn.Parameter]) -> Chosen:
    """What public parameters stand for.

    Raises:
        ConfigError: a parameter is not a public face of a sharded model.
    """
    chosen: Chosen = {}
    for flat, param in map(home, params):
        chosen.setdefault(flat, []).append(param)
    return chosen


def home(param: nn.Parameter) -> Home:
    """Where a public parameter lives."""
    found = home_of(param)
    if found is None:
        raise ConfigError(
            message(
                "parameter",
                "come from a sharded model",
                f"{type(param).__name__} of shape {tuple(param.shape)}",
                "call overlap.shard(model) first and pass model.parameters() afterwards",
            )
        )
    return found


def global_norm(chosen: Chosen) -> Tensor:
    """L2 norm of all gradients of some parameters, and whether it is finite. A collective, in the order of compute.

    Args:
        chosen: at least one parameter; those without gradient count nothing.

    Returns:
        fp64 ``[2]`` on the gradients' device: norm, and 1.0 where a NaN or Inf was met.
    """
    comm = comm_of(chosen)
    parts = [(part, int(flat.key.replicated)) for flat in chosen for part in gradients_of(flat, chosen[flat])]
    first = next(iter(chosen))
    result = torch.empty(2, dtype=torch.float64, device=first.master.device)
    first.in_order("norm", sum(part.nbytes for part, _ in parts), partial(_norm_into, result, parts, comm))
    return result


def _norm_into(result: Tensor, parts: Sequence[tuple[Tensor, int]], comm: Communicator) -> None:
    partials = torch.zeros(2, 2, dtype=torch.float64, device=result.device)  # row 0 sharded, row 1 replicated
    for part, row in parts:
        ops.grad_norm(part, partials[row], accumulate=True)
    everyone = torch.empty(comm.world * 2, dtype=torch.float64, device=result.device)
    comm.all_gather([Piece(partials[0], everyone)], "norm")
    total = partials[1]
    for theirs in everyone.view(comm.world, 2):  # in rank order, so that all ranks get the same bits
        total = total + theirs
    result.copy_(torch.stack((total[0].sqrt(), (total[1] > 0).double())))


def gradients_of(flat: Flat, params: Sequence[ShardedParam]) -> list[Tensor]:
    """Gradients of some of a flat's parameters: the flat buffer where that is all of them, else a part for each."""
    shown = [param for param in params if param.public.grad is not None]
    if flat.grad is None:
        return []
    if len(shown) == len(flat.params):
        return [flat.grad]
    return [flat.grad.narrow(0, param.layout.offset, param.layout.chunk) for param in shown]


def adopt_foreign_gradients(flats: Iterable[Flat]) -> None:
    """Copy gradients that the user has put in place of ours into the flat, where norm and update read."""
    for flat in flats:
        for param in flat.params:
            shown = param.public.grad
            if shown is not None and shown is not param.gradient and param.gradient is not None:
                local = shown.to_local() if isinstance(shown, DTensor) else shown
                param.gradient.to_local().copy_(local)
                param.public.grad = param.gradient


def clip_coefficient(norm: Tensor, max_norm: float) -> Tensor:
    """``min(1, max_norm / (norm + eps))`` as fp32 ``[1]``, on the device. Source: torch.nn.utils.clip_grad_norm_."""
    return (max_norm / (norm[:1] + CLIP_EPS)).clamp(max=1.0).float()


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[nn.Parameter], max_norm: float, *, error_if_nonfinite: bool = False) -> Tensor:
    """Scale all gradients so that their global L2 norm is at most ``max_norm``. A collective.

    Works with any optimizer. ``overlap.AdamW(max_grad_norm=...)`` does the same inside its update, without this pass.

    Args:
        parameters: public parameters of one sharded model.
        max_norm: above 0.
        error_if_nonfinite: raise where the norm is NaN or Inf; reads it on the host, which waits for the device.

    Returns:
        fp32 scalar: the norm before clipping.

    Raises:
        ConfigError: ``max_norm`` is not above 0, or a parameter is not from a sharded model.
        StateError: non-finite norm with ``error_if_nonfinite``; gradients are left as they are.
    """
    check_max_norm(max_norm)
    chosen = chosen_of(parameters)
    adopt_foreign_gradients(chosen)
    norm = global_norm(chosen)
    if error_if_nonfinite and norm[1].item():
        raise StateError(
            message("gradient norm", "be finite", norm[0].item(), "lower the learning rate or skip the step")
        )
    coefficient = clip_coefficient(norm, max_norm)
    for flat, params in chosen.items():
        for gradient in gradients_of(flat, params):
            gradient.mul_(coefficient.to(gradient.dtype))
    return norm[0].float()


def comm_of(flats: Iterable[Flat]) -> Communicator:
    """The communicator that norms of these flats are summed over.

    Raises:
        ConfigError: no flats, or flats of several meshes.
    """
    meshes = {flat.mesh for flat in flats}  # units sharded one by one have equal meshes, not one object
    if len(meshes) != 1:
        raise ConfigError(
            message("parameters", "come from one sharded model", f"{len(meshes)} meshes", "use one call per model")
        )
    return compute_communicator(meshes.pop())


def check_max_norm(max_norm: float, name: str = "max_norm") -> None:
    """Refuse what cannot be a norm."""
    if not max_norm > 0:
        raise ConfigError(message(name, "be above 0", max_norm, "leave it out to not clip"))
