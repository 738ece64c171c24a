"""Which flats the parameters stand for that a norm or an update concerns, and where their gradients lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.comm.meshes import compute_communicator
from overlap.errors import ConfigError, message
from overlap.shard.flat import Flat, Home, home_of
from overlap.shard.param import ShardedParam

Chosen = dict[Flat, list[ShardedParam]]
"""Parameters that a norm or an update concerns, by flat."""


def chosen_of(params: Iterable[Tensor]) -> Chosen:
    """What public parameters stand for, each once.

    Raises:
        ConfigError: a parameter is not a public face of a sharded model.
    """
    chosen: Chosen = {}
    for flat, param in map(home, dict.fromkeys(params)):
        chosen.setdefault(flat, []).append(param)
    return chosen


def is_inert(param: Tensor) -> bool:
    """Whether nothing can ever be done to it: no elements, or integers. Sharding leaves such parameters as they are."""
    return (param.numel() == 0 or not param.is_floating_point()) and home_of(param) is None


def home(param: Tensor) -> Home:
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


def gradients_of(flat: Flat, params: Sequence[ShardedParam]) -> list[Tensor]:
    """Gradients of some of a flat's parameters: the flat buffer where that is all of them, else a part for each."""
    shown = [param for param in params if param.public.grad is not None]
    if flat.grad is None:  # no backward has been here: the user has set them
        return [param.rows_of(param.public.grad) for param in shown if param.public.grad is not None]
    if len(shown) == len(flat.params):
        return [flat.grad]
    return [flat.grad.narrow(0, param.layout.offset, param.layout.chunk) for param in shown]


def adopt_foreign_gradients(flats: Iterable[Flat]) -> None:
    """Copy gradients that the user has put in place of ours into the flat, where norm and update read."""
    for flat in flats:
        for param in flat.params:
            param.take_shown_gradient()
