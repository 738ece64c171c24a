"""What a norm or an update concerns: shares of flats, and where their gradients lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from overlap import _compat
from overlap.comm.collective import Communicator
from overlap.comm.meshes import compute_communicator
from overlap.errors import ConfigError, message
from overlap.shard.flat import Flat, Home, home_of
from overlap.shard.param import ShardedParam, local_rows


class Share(NamedTuple):
    """Some parameters of one flat."""

    flat: Flat
    params: list[ShardedParam]
    """In the order in which they were asked for."""
    positions: list[int]
    """Of each among all that were asked for."""

    @property
    def whole(self) -> bool:
        """Whether these are all parameters of the flat."""
        return len(self.params) == len(self.flat.params)

    def with_gradient(self) -> Share:
        """Those that have a gradient; one that the user has put in place of ours is copied to where it is read."""
        params = self.params
        if self.flat.grad is not None:  # then parameters have a place for it
            with _compat.fast_attributes():
                ours = [param.public.grad is param.gradient for param in params]
            if all(ours):
                return self
        shown = [param.take_shown_gradient() for param in params]
        if all(shown):
            return self
        return Share(self.flat, [*compress(self.params, shown)], [*compress(self.positions, shown)])

    def gradients(self) -> list[Tensor]:
        """Of parameters that all have one: the flat buffer where that is the whole of it, else a part for each."""
        if self.flat.grad is None:  # no backward has been here: the user has set them
            return [param.rows_of(param.public.grad) for param in self.params if param.public.grad is not None]
        if self.whole:
            return [self.flat.grad]
        return [self.flat.grad.narrow(0, param.layout.offset, param.layout.chunk) for param in self.params]


def gradient_of(flat: Flat) -> Tensor:
    """``[shard_numel]``; without a backward of ours a copy of what the user has set, zero elsewhere."""
    if flat.grad is not None:
        return flat.grad
    grads = torch.zeros_like(flat.master)
    for param in flat.params:
        if param.public.grad is not None:
            local_rows(grads, param.layout, flat.rank).copy_(param.rows_of(param.public.grad))
    return grads


Chosen = Sequence[Share]
"""Parameters with a gradient that a norm or an update concerns; of a flat perhaps none."""


def is_inert(param: Tensor) -> bool:
    """Whether nothing can ever be done to it: no elements, or integers. Sharding leaves such parameters as they are."""
    return (param.numel() == 0 or not param.is_floating_point()) and home_of(param) is None


def home(param: Tensor) -> Home:
    """Where a public parameter lives.

    Raises:
        ConfigError: it is not of a sharded model, or of one that is gone.
    """
    found = home_of(param)
    if found is None:
        raise not_sharded(param)
    return found


def not_sharded(param: Tensor) -> ConfigError:
    """What to raise for a parameter that nobody has sharded."""
    got = f"{type(param).__name__} of shape {tuple(param.shape)}"
    cure = "call overlap.shard(model) first and pass model.parameters() afterwards"
    return ConfigError(message("parameter", "come from a sharded model", got, cure))


def comm_of(flats: Iterable[Flat]) -> Communicator:
    """The communicator that norms of these flats are summed over.

    Raises:
        ConfigError: no flats, or flats of several meshes.
    """
    by_id = {id(flat.mesh): flat.mesh for flat in flats}  # hashing a mesh takes Python
    meshes = {*by_id.values()}  # units sharded one by one have equal meshes, not one object
    if len(meshes) != 1:
        raise ConfigError(
            message("parameters", "come from one sharded model", f"{len(meshes)} meshes", "use one call per model")
        )
    return compute_communicator(meshes.pop())
