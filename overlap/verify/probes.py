"""Is it the model itself? The unsharded twin is asked again: the same forward twice, and on every rank."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import torch

from overlap.verify import checks
from overlap.verify.batches import fresh
from overlap.verify.compare import difference
from overlap.verify.finding import Spot
from overlap.verify.log import Placed
from overlap.verify.pair import Pair
from overlap.verify.tolerance import Tolerance


def repeats_itself(pair: Pair, batch: Any, seed: int, spot: Spot, tolerance: Tolerance) -> Iterator[Placed]:
    """Run the twin's forward twice with the same weights, batch and random numbers."""
    once, again = pair.plain.forward(batch, seed), pair.plain.forward(batch, seed)
    for place, finding in checks.forward(again, once, spot, tolerance):
        met = f"{finding.detail}, from the same weights, batch and seed"
        yield place, spot.finding("not_deterministic", finding.unit, finding.tensor, met)


def same_on_all_ranks(pair: Pair, batch: Any, seed: int, spot: Spot, tolerance: Tolerance) -> Iterator[Placed]:
    """Run the twins, which have the same weights everywhere, on rank 0's batch with rank 0's buffers. A collective."""
    sent = pair.peers.gather(_pickled(batch) if spot.rank == 0 else None)[0]
    if sent is None:
        return
    with torch.no_grad():
        for buffer in pair.twin.module.buffers():
            pair.peers.broadcast(buffer)
    loss = pair.plain.forward(pickle.loads(sent), seed).loss.detach().cpu()
    met = difference(loss, pair.peers.gather(loss)[0], tolerance.of_forward)
    if met is not None:
        yield 0, spot.finding("rank_dependent", "", "loss", f"{met.detail.partition(' at ')[0]} as on rank 0")


def _pickled(batch: Any) -> bytes | None:
    """None where a batch cannot travel: then there is nothing to ask."""
    try:
        return pickle.dumps(fresh(batch, torch.device("cpu")))
    except Exception:
        return None
