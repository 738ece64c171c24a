"""How many collectives a step takes: as many as planned, however often a unit is called or recomputed."""

from collections import Counter
from functools import partial

import pytest
import torch
from support.chain import WIDTH, data
from support.counting import collectives
from support.models import BLOCKS
from support.pair import Sharded, add_gradients, sgd
from support.ranks import Ranks
from support.twins import Twins
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import overlap

STAGES = (0, 1, 2, 3)
CHUNKS = 4


def _as_planned(stage: int, bucket_bytes: int) -> None:
    run = Sharded(stage=stage, bucket_bytes=bucket_bytes)
    buckets = run.engine.gradients.buckets
    replicated = sum(bucket.replicated for bucket in buckets)
    for step in range(5):
        counted = collectives(run.engine, run.step)
        assert counted.get("reduce", 0) == len(buckets) - replicated, f"in step {step}"
        assert counted["replicated"] == replicated, f"in step {step}"
        if step > 1:
            assert counted["control"] == 1, "what was used; the first steps agree on a plan beside that"


@pytest.mark.parametrize("bucket_bytes", [1, 4096, 1 << 20])
@pytest.mark.parametrize("stage", STAGES)
def test_every_step_reduces_each_bucket_once(ranks: Ranks, stage: int, bucket_bytes: int) -> None:
    ranks(2, _as_planned, stage, bucket_bytes)


class Chunked(nn.Module):
    """A head whose loss is taken chunk by chunk, so that its logits are never there at once."""

    def __init__(self, chunks: int, recompute: str) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 40)
        self.chunks, self.recompute = chunks, recompute

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        return torch.stack([self.part(chunk) for chunk in hidden.chunk(self.chunks)]).mean()

    def part(self, hidden: Tensor) -> Tensor:
        if self.recompute == "none":
            return self.loss(hidden)
        return checkpoint(self.loss, hidden, use_reentrant=self.recompute == "reentrant")

    def loss(self, hidden: Tensor) -> Tensor:
        return (self.head(hidden) - 0.5).square().mean()


def _chunk_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(torch.cat([data(step + 100 * part, rank)[:2] for part in range(CHUNKS)]))


def _chunks(stage: int, recompute: str) -> None:
    """The plain one takes the loss in one piece."""
    twins = Twins(lambda: Chunked(CHUNKS, recompute), _chunk_loss, stage=stage, unit="head", replicate_max_numel=0)
    twins.plain.chunks, twins.plain.recompute = 1, "none"
    once = len(twins.engine.gradients.buckets)
    for step in range(3):
        counted = collectives(twins.engine, lambda: _chunk_loss(twins.model, twins.rank, twins.steps).backward())
        reductions = counted.get("reduce", 0) + counted.get("replicated", 0)
        # Reentrant checkpointing gives a gradient per chunk: what comes after the bucket has left goes once more.
        assert once <= reductions <= once + (recompute == "reentrant"), f"in step {step}"
        twins.backward_plain()
        twins.check_gradients(f"of step {step}", bits=False)
        twins.apply()


@pytest.mark.parametrize("recompute", ["none", "non-reentrant", "reentrant"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_head_called_in_chunks_is_reduced_once(ranks: Ranks, stage: int, recompute: str) -> None:
    ranks(2, _chunks, stage, recompute)


class Split(Chunked):
    """Body and head by themselves, for a caller that runs backward chunk by chunk."""

    def forward(self, x: Tensor, of: str) -> Tensor:
        return torch.tanh(self.body(x)) if of == "body" else self.loss(x)


def _by_hand(model: nn.Module, rank: int) -> None:
    """The head's backward runs per chunk, and ends at the hidden states; then the body's runs once."""
    hidden = model(torch.cat([data(100 * part, rank)[:2] for part in range(CHUNKS)]), "body")
    apart = hidden.detach().requires_grad_()
    with model.no_sync():
        for chunk in apart.chunk(CHUNKS):
            (model(chunk, "head") / CHUNKS).backward()
    hidden.backward(apart.grad)


def _chunk_by_chunk(stage: int) -> None:
    twins = Twins(lambda: Split(1, "none"), _chunk_loss, stage=stage, unit="head", replicate_max_numel=0)
    counted = collectives(twins.engine, partial(_by_hand, twins.model, twins.rank))
    assert counted.get("reduce", 0) + counted.get("replicated", 0) == len(twins.engine.gradients.buckets)

    def whole(rank: int) -> list[Tensor]:
        x = torch.cat([data(100 * part, rank)[:2] for part in range(CHUNKS)])
        return [twins.plain(twins.plain(x, "body"), "head")]

    add_gradients(twins.plain, twins.world, whole)
    twins.check_gradients(bits=False)


@pytest.mark.parametrize("stage", STAGES)
def test_backward_chunk_by_chunk_is_reduced_once(ranks: Ranks, stage: int) -> None:
    ranks(2, _chunk_by_chunk, stage)


class Deep(nn.Module):
    """Six blocks, recomputed."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = torch.tanh(checkpoint(block, x, use_reentrant=self.reentrant))
        return x


def _gathers(stage: int, reentrant: bool, prefetch: int) -> None:
    model = overlap.shard(
        Deep(reentrant), stage=stage, unit="blocks.*", prefetch=prefetch, replicate_max_numel=WIDTH, poison=True
    )
    update = sgd(model.parameters())
    engine = overlap.engine_of(model)
    for step in range(4):
        model(data(step)).square().mean().backward()
        update.step()
        update.zero_grad()
        issued = Counter(event.partition("#")[0] for event in engine.executor.issued)
        counts = [issued[f"gathered:{unit}"] for unit in range(1, 7)]
        # The ring has prefetch + 1 slots: the last blocks are still there when backward begins.
        again = 6 - (prefetch + 1) if stage == 3 else 0
        assert counts == [2] * again + [1] * (6 - again), f"in step {step}"
        _nothing_left(model, poisoned=stage == 3 and step > 0)
    assert engine.deviations == 0


def _nothing_left(model: nn.Module, poisoned: bool) -> None:
    """After a step users see shards; where a plan says what is freed, nothing has been left in a slot."""
    assert all(isinstance(param, DTensor) for param in model.parameters())
    kept = [slot for slot in overlap.engine_of(model).slots.slots if not (slot.buffer == 0xFF).all()]
    assert not (kept and poisoned)


@pytest.mark.parametrize("prefetch", [1, 2])
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("stage", [2, 3])
def test_recomputed_blocks_are_gathered_twice_at_most_and_let_go(
    ranks: Ranks, stage: int, reentrant: bool, prefetch: int
) -> None:
    ranks(2, _gathers, stage, reentrant, prefetch)


def _tied_once() -> None:
    """A weight that two modules of a unit share travels once."""
    sent = {}
    for tied in (False, True):
        run = Sharded(traits={"tied": tied})
        run.step()
        pieces = sum(len(unit.pieces) for unit in run.engine.units)
        sent[tied] = (pieces, collectives(run.engine, run.step)["gather"])
    assert sent[True][0] == sent[False][0] - 1
    assert sent[True][1] == sent[False][1] == BLOCKS + 2, "each block, the root, and the first block once more"


def test_a_weight_shared_inside_a_unit_is_gathered_once(ranks: Ranks) -> None:
    ranks(2, _tied_once)
