"""Global gradient norm, without a host synchronisation.

Each flat gives a partial sum of squares and a non-finite flag in one pass (``ops.grad_norm``). Ranks exchange two
numbers each and add them in rank order: all of them get the same bits. What is whole on every rank (replicated flats,
plain parameters) counts once, as rank 0 has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from overlap import ops
from overlap.comm.collective import Communicator
from overlap.optim.chosen import Chosen, Share, comm_of
from overlap.optim.order import ComputeOrder
from overlap.shard.flat import Flat
from overlap.shard.piece import Piece


@dataclass(frozen=True, slots=True)
class GradientNorm:
    """A norm on the device.

    Attributes:
        values: fp64 ``[2]``: the norm; and 0.0, or where a NaN or Inf was met the number, from 1, of its place.
        places: flats whose gradients were measured, in the order of the parameters given; None stands for plain ones.
    """

    values: Tensor
    places: tuple[Flat | None, ...]

    @property
    def norm(self) -> Tensor:
        """``[1]``, a view."""
        return self.values[:1]

    @property
    def bad(self) -> Tensor:
        """``[1]``, a view; above 0 where a NaN or Inf was met."""
        return self.values[1:]


class _Part(NamedTuple):
    """Gradients that are measured in one pass."""

    values: Tensor
    counts: bool  # else another rank counts it
    flat: Flat | None


@dataclass(frozen=True, slots=True)
class NormOrder:
    """The p of a p-norm: how parts are measured, put together, and finished. Infinity is the largest magnitude."""

    p: float

    def measure(self, values: Tensor, out: Tensor) -> None:
        """Sum of powers of one part and its non-finite flag into fp64 ``[2]``."""
        if self.p == 2 and values.dtype != torch.float64:
            ops.grad_norm(values, out)
            return
        norm = torch.linalg.vector_norm(values, self.p, dtype=torch.float64)
        out[0] = norm if math.isinf(self.p) else norm**self.p
        out[1] = ~norm.isfinite()

    def combine(self, partials: Tensor) -> Tensor:
        """Put parts ``[n]`` together, from the first to the last: no vector width may decide about the order."""
        return partials.amax() if math.isinf(self.p) else partials.cumsum(0)[-1]

    def root(self, total: Tensor) -> Tensor:
        """The norm, of what all parts give together."""
        if math.isinf(self.p):
            return total
        return total.sqrt() if self.p == 2 else total ** (1 / self.p)


TWO = NormOrder(2.0)


def global_norm(chosen: Chosen, plain: Sequence[Tensor] = (), order: NormOrder = TWO) -> GradientNorm:
    """Norm of all gradients of some parameters. A collective, in the order of compute.

    Args:
        chosen: of one sharded model.
        plain: gradients that are whole, and equal, on every rank; at least one where nothing is chosen.
        order: of the norm.
    """
    comm = comm_of(share.flat for share in chosen) if chosen else None
    first = comm is None or comm.rank == 0
    parts = [part for share in chosen for part in _parts_of(share, first)]
    flat = chosen[0].flat if chosen else None
    device = flat.master.device if flat is not None else plain[0].device
    parts += [_Part(grad.reshape(-1).to(device), first, None) for grad in plain if grad.numel()]
    result = torch.zeros(2, dtype=torch.float64, device=device)
    run = partial(_norm_into, result, parts, order, comm)
    if flat is None:
        run()
    else:
        flat.in_order("norm", sum(part.values.nbytes for part in parts), run)
    return GradientNorm(result, tuple(part.flat for part in parts))


def _parts_of(share: Share, first: bool) -> Iterator[_Part]:
    counts = first or not share.flat.key.replicated
    for gradient in share.gradients():
        yield _Part(gradient if gradient.ndim == 1 else gradient.reshape(-1), counts, share.flat)


def place_of(flat: Flat | None) -> str:
    """Where that is, for messages."""
    if flat is None:
        return "outside of the sharded model"
    if isinstance(flat.order, ComputeOrder):
        return f"in unit {flat.order.unit!r}"
    return f"near parameter {flat.params[0].fqn!r}"  # no engine yet, which knows units


def _norm_into(result: Tensor, parts: Sequence[_Part], order: NormOrder, comm: Communicator | None) -> None:
    device, rows = result.device, max(1, len(parts))
    partials = torch.zeros(2, rows, 2, dtype=torch.float64, device=device)  # counted here, and elsewhere
    counted = all(part.counts for part in parts)
    outs = [kind.unbind() for kind in (partials[:1] if counted else partials)]
    for row, part in enumerate(parts):
        order.measure(part.values, outs[not part.counts][row])
    numbers = torch.arange(1, rows + 1, dtype=torch.float64, device=device)
    # The last one that is bad: backward meets it first.
    bad = (partials[..., 1].amax(0) * numbers).amax()
    own = torch.stack((order.combine(partials[0, :, 0]), bad))
    everyone = own
    if comm is not None:
        everyone = torch.empty(comm.world * 2, dtype=torch.float64, device=device)
        comm.all_gather([Piece(own, everyone)], "norm")
    everyone = everyone.view(-1, 2)
    result[0] = order.root(order.combine(everyone[:, 0]))
    result[1] = everyone[:, 1].amax()
