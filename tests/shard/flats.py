"""Flats and units of any rank, without a process group: for tests of what lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from overlap.config import ShardOptions
from overlap.shard.flat import Flat, FlatKey, empty_flat
from overlap.shard.layout import lay_out
from overlap.shard.param import Owner, ShardedParam, local_rows
from overlap.shard.unit import Unit

NO_MESH = cast(Any, None)


def make_flat(
    fulls: Sequence[Tensor],
    *,
    world: int,
    rank: int = 0,
    trainable: bool = True,
    compute_dtype: torch.dtype = torch.float32,
    dims: Sequence[int] = (),
) -> Flat:
    """One rank's flat over these full values, split along ``dims``; world 1 means replicated.

    Public faces are plain parameters.
    """
    key = FlatKey(world == 1, trainable, torch.float32, compute_dtype)
    layout = lay_out([tuple(full.shape) for full in fulls], world, dims)
    flat = empty_flat(key, layout, rank, torch.device("cpu"), NO_MESH)
    flat.grad = torch.zeros_like(flat.master)
    for number, (full, place) in enumerate(zip(fulls, layout.params, strict=True)):
        rows = local_rows(flat.master, place, flat.rank)
        start, count = place.rows_of(flat.rank)
        rows.copy_(full.narrow(place.dim, start, count) if place.shape else full)
        table: dict[str, nn.Parameter | None] = {}
        table[f"p{number}"] = public = nn.Parameter(rows, requires_grad=trainable)
        flat.add(ShardedParam(f"p{number}", (Owner(table, f"p{number}"),), place, trainable, public))
    return flat


def make_unit(name: str, *flats: Flat) -> Unit:
    return Unit(name, ShardOptions(), flats, leaf=True)


def values(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Full tensors with a different number in every element."""
    start, made = 1, []
    for shape in shapes:
        numel = torch.Size(shape).numel()
        made.append(torch.arange(start, start + numel, dtype=torch.float32).view(shape))
        start += numel
    return made
