"""Weights tied across units: one storage, one gather, gradients summed once; as in one process."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.chain import close, twin_gradients
from support.ranks import Ranks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import overlap
from overlap.schedule.op import Kind

STAGES = (0, 1, 2, 3)
VOCAB, WIDTH = 67, 16


class Block(nn.Module):
    """Mixes positions; the adapter may be another block's, too."""

    def __init__(self, adapter: nn.Parameter | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.adapter = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4) if adapter is None else adapter

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x) @ self.adapter)


class Tied(nn.Module):
    """Embedding and head share a weight; the first and the last block an adapter; the root uses block 1's itself."""

    def __init__(self, *, recompute: bool = False, by_root: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        first, second = Block(), Block()
        self.blocks = nn.ModuleList([first, second, Block(first.adapter)])
        self.head = nn.Linear(WIDTH, VOCAB)
        self.head.weight = self.embedding.weight
        self.recompute = recompute
        self.mix = second.adapter if by_root else None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.mix is not None:
            x = x @ self.mix
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def tied(**traits: Any) -> Tied:
    torch.manual_seed(0)
    return Tied(**traits)


def shard(model: Tied, order: tuple[str, ...] = ("embedding", "blocks", "head"), **options: Any) -> Tied:
    """Every part a unit of its own, in any order."""
    options = {"replicate_max_numel": WIDTH, "poison": True, **options}
    for name in order:
        part = getattr(model, name)
        for module in part if name == "blocks" else [part]:
            overlap.fully_shard(module, **options)
    return overlap.fully_shard(model, **options)


def loss(model: nn.Module, step: int, rank: int | None = None) -> Tensor:
    source = torch.Generator().manual_seed(100 * step + (dist.get_rank() if rank is None else rank))
    tokens = torch.randint(0, VOCAB, (3, 6), generator=source)
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


ORDERS = (("embedding", "blocks", "head"), ("head", "blocks", "embedding"))
TRAITS: tuple[dict[str, bool], ...] = ({}, {"recompute": True}, {"by_root": True})


def _trains(stage: int, order: tuple[str, ...], traits: dict[str, bool]) -> None:
    model, twin = shard(tied(**traits), order, stage=stage), tied(**traits)
    mine = overlap.AdamW(model.parameters(), lr=1e-2)
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    for step in range(4):
        mine.zero_grad()
        theirs.zero_grad()
        loss(model, step).backward()
        twin_gradients(twin, lambda net, rank, step=step: loss(net, step, rank))
        assert close(model.parameters(), twin.parameters()), step
        mine.step()
        theirs.step()
        with torch.no_grad():
            torch.testing.assert_close(loss(model, 9), loss(twin, 9))
    assert overlap.engine_of(model).deviations == 0
    assert model.head.weight is model.embedding.weight
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in twin.named_parameters()]


@pytest.mark.parametrize("traits", TRAITS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("stage", STAGES)
def test_ties_across_units_train_as_in_one_process(
    ranks: Ranks, stage: int, order: tuple[str, ...], traits: dict[str, bool]
) -> None:
    ranks(2, _trains, stage, order, traits)


def _gathers() -> None:
    model = shard(tied())
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss(model, step).backward()
        update.step()
        update.zero_grad()
    engine = overlap.engine_of(model)
    assert engine.plan is not None
    names = [engine.units[op.index].name for op in engine.plan.ops if op.kind is Kind.GATHER]
    assert names.count("embedding") == 1  # for both ends of the model, forward and backward
    assert names.count("blocks.0") == 1
    assert len([op for op in engine.plan.ops if op.kind is Kind.REDUCE]) == len(engine.gradients.buckets)
    assert sum(param.numel() for _, param in model.named_parameters()) == sum(p.numel() for p in tied().parameters())


def test_what_is_tied_is_gathered_once_for_all_who_use_it(ranks: Ranks) -> None:
    ranks(2, _gathers)


def _alone(stage: int) -> None:
    """Borrowers run without the unit they borrow from."""
    model, twin = shard(tied(), stage=stage), tied()
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
    for net in (model, twin):
        net.blocks[2](x).square().mean().backward()
        net.head(x).square().mean().backward()
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad, msg=name)


@pytest.mark.parametrize("stage", STAGES)
def test_a_borrower_may_be_called_alone(ranks: Ranks, stage: int) -> None:
    ranks(2, _alone, stage)


def _on_meta() -> None:
    with torch.device("meta"):
        model = Tied()
    model = shard(model, init_fn=_fill)
    assert model.head.weight is model.embedding.weight
    twin = tied()
    twin.load_state_dict({name: value.full_tensor() for name, value in model.state_dict().items()})
    loss(model, 0).backward()
    twin_gradients(twin, lambda net, rank: loss(net, 0, rank))
    assert close(model.parameters(), twin.parameters())


def _fill(module: nn.Module) -> None:
    for param in module.parameters(recurse=False):
        nn.init.normal_(param, std=0.1)


def test_ties_of_a_meta_model_hold(ranks: Ranks) -> None:
    ranks(2, _on_meta)


def _moves_state() -> None:
    model, other, plain = shard(tied()), shard(tied()), tied()
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(1.5)
    state = model.state_dict()
    assert list(state) == list(plain.state_dict())
    other.load_state_dict(state)
    plain.load_state_dict({name: value.full_tensor() for name, value in state.items()})
    assert other.head.weight is other.embedding.weight
    torch.testing.assert_close(loss(other, 0), loss(model, 0))
    torch.testing.assert_close(loss(model, 0), loss(plain, 0))


def test_state_has_both_names_and_keeps_the_tie(ranks: Ranks) -> None:
    ranks(2, _moves_state)


def _tied_afterwards() -> None:
    model, twin = tied(), tied()
    options = {"replicate_max_numel": WIDTH, "poison": True}
    model.head.weight = nn.Parameter(torch.zeros(VOCAB, WIDTH))
    overlap.fully_shard(model.embedding, **options)
    model.head.weight = model.embedding.weight  # the sharded one
    overlap.fully_shard(model.head, **options)
    overlap.fully_shard(model, **options)
    loss(model, 0).backward()
    twin_gradients(twin, lambda net, rank: loss(net, 0, rank))
    assert close(model.parameters(), twin.parameters())


def test_a_tie_may_be_made_to_a_sharded_parameter(ranks: Ranks) -> None:
    ranks(2, _tied_afterwards)


def _foreign() -> None:
    one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    other.weight = one.weight
    overlap.fully_shard(one)
    overlap.fully_shard(other)
    with pytest.raises(overlap.StateError, match="belong to one model"):
        other(torch.zeros(1, WIDTH))


def test_a_tie_to_another_model_is_refused(ranks: Ranks) -> None:
    ranks(1, _foreign)
