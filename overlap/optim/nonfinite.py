"""Which gradients are not finite: asked on request only, after a step was skipped, since it reads every gradient.

Reduced gradients are shared by rows, so one rank may hold the only Inf; all ranks get the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from overlap.optim.chosen import comm_of
from overlap.shard.flat import home_of
from overlap.shard.piece import Piece


@torch.no_grad()
def first_nonfinite(params: Iterable[Tensor]) -> str:
    """Name the one that backward met first, if parameters come in the order of the model. A collective."""
    found = find_nonfinite([(_described(param), param) for param in params])
    return next((name for name, _ in found), "none that is still there")


def _described(param: Tensor) -> str:
    home = home_of(param)
    return repr(home.param.fqn) if home is not None else f"a plain parameter of shape {tuple(param.shape)}"


@torch.no_grad()
def find_nonfinite(named: Sequence[tuple[str, Tensor]]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and ranks. Backward goes from the last module to the first: so do the results."""
    flags = _flags([param for _, param in named])
    found = [(name, tuple(bad.nonzero().flatten().tolist())) for (name, _), bad in zip(named, flags, strict=True)]
    return [(name, ranks) for name, ranks in reversed(found) if ranks]


def _flags(params: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of each parameter, by rank: 1 where its gradient has a NaN or Inf; on the host."""
    homes = map(home_of, params)
    flats = {home.flat: home.flat.master.device for home in homes if home is not None}
    own = torch.zeros(len(params), dtype=torch.uint8, device=next(iter(flats.values()), None))
    for place, param in enumerate(params):
        if param.grad is not None:
            rows = param.grad.to_local() if isinstance(param.grad, DTensor) else param.grad
            own[place] = ~rows.isfinite().all()
    everyone = own
    if flats:
        comm = comm_of(flats)
        everyone = own.new_empty(comm.world * own.numel())
        comm.all_gather([Piece(own, everyone)], "nonfinite")
    return everyone.view(-1, len(params)).cpu().unbind(1) if params else ()
