"""Global gradient norm, without a host synchronisation.

Each flat gives a partial sum of squares and a non-finite flag in one pass (``ops.grad_norm``). Ranks exchange two
numbers each and add them in rank order: all of them get the same bits. What is whole on every rank (replicated flats,
plain parameters) counts once, as rank 0 has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.ops.face import Face
from overlap.ops.faces import face_of
from overlap.optim.chosen import Chosen, comm_of
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


@dataclass(slots=True)
class _Parts:
    """Gradients, each measured in one pass: values ``[n]``, whether they count here, where they are."""

    values: list[Tensor] = field(default_factory=list)
    count: list[bool] = field(default_factory=list)  # else another rank counts them
    places: list[Flat | None] = field(default_factory=list)

    def add(self, gradients: Sequence[Tensor], place: Flat | None, *, count: bool) -> None:
        self.values += [grad if grad.ndim == 1 else grad.reshape(-1) for grad in gradients]
        self.count += [count] * len(gradients)
        self.places += [place] * len(gradients)

    @property
    def nbytes(self) -> int:
        return sum([values.nbytes for values in self.values])


@dataclass(frozen=True, slots=True)
class NormOrder:
    """The p of a p-norm: how parts are measured, put together, and finished. Infinity is the largest magnitude."""

    p: float

    def measure(self, face: Face, values: Tensor, out: Tensor) -> None:
        """Sum of powers of one part and its non-finite flag into fp64 ``[2]``."""
        if self.p == 2 and values.dtype != torch.float64:
            face.grad_norm(values, out, False)  # ``ops.grad_norm``, its face looked up once for all parts
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
    comm = comm_of([share.flat for share in chosen]) if chosen else None
    first = comm is None or comm.rank == 0
    flat = chosen[0].flat if chosen else None
    device = flat.master.device if flat is not None else plain[0].device
    parts = _Parts()
    for share in chosen:
        parts.add(share.gradients(), share.flat, count=first or not share.flat.key.replicated)
    parts.add([grad.to(device) for grad in plain if grad.numel()], None, count=first)
    result = torch.zeros(2, dtype=torch.float64, device=device)
    run = partial(_norm_into, result, parts, order, comm)
    if flat is None:
        run()
    else:
        flat.in_order("norm", parts.nbytes, run)
    return GradientNorm(result, tuple(parts.places))


def place_of(flat: Flat | None) -> str:
    """Where that is, for messages."""
    if flat is None:
        return "outside of the sharded model"
    if isinstance(flat.order, ComputeOrder):
        return f"in unit {flat.order.unit!r}"
    return f"near parameter {flat.params[0].fqn!r}"  # no engine yet, which knows units


def _norm_into(result: Tensor, parts: _Parts, order: NormOrder, comm: Communicator | None) -> None:
    device, rows, face = result.device, max(1, len(parts.values)), face_of(result)
    partials = torch.zeros(2, rows, 2, dtype=torch.float64, device=device)  # counted here, and elsewhere
    outs = [kind.unbind() for kind in (partials[:1] if all(parts.count) else partials)]
    for row, (values, count) in enumerate(zip(parts.values, parts.count, strict=True)):
        order.measure(face, values, outs[not count][row])
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
