"""Models built on the meta device get memory and values unit by unit, the same on all ranks."""

import pytest
import torch
import torch.distributed as dist
from support.clear_error import clear_error
from support.models import Model, loss_of
from support.pair import assert_same_bits, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn

import overlap


def _meta() -> Model:
    with torch.device("meta"):
        return Model()


def _ranks_agree(named: dict[str, Tensor]) -> None:
    for name, value in named.items():
        copies = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, value)
        assert all(torch.equal(copy, value) for copy in copies), name


def _materialises(stage: int) -> None:
    torch.manual_seed(dist.get_rank())
    model = shard_blocks(_meta(), stage=stage)
    values = whole(model)
    assert all(value.device.type == "cpu" and value.isfinite().all() for value in values.values())
    assert values["blocks.0.up.weight"].std() > 0.05, "drawn, not zero"
    _ranks_agree(values)
    loss_of(model, dist.get_rank(), 0).backward()


@pytest.mark.parametrize("stage", [1, 3])
def test_reset_parameters_fills_it_alike_on_all_ranks(ranks: Ranks, stage: int) -> None:
    ranks(2, _materialises, stage)


def _equals_the_one_with_memory() -> None:
    torch.manual_seed(7)
    filled = shard_blocks(_meta())
    torch.manual_seed(7)
    plain = _meta().to_empty(device="cpu")
    inner = [*(layer for block in plain.blocks for layer in (block.norm, block.up, block.down))]
    for module in (*_innermost_first(inner), plain.embedding, plain.head):
        module.reset_parameters()
    assert_same_bits(whole(filled), whole(plain))


def _innermost_first(layers: list[nn.Module]) -> list[nn.Module]:
    """Units are filled last block first, each in the order of its modules."""
    return [layer for start in (6, 3, 0) for layer in layers[start : start + 3]]


def test_units_are_filled_one_after_another(ranks: Ranks) -> None:
    ranks(1, _equals_the_one_with_memory)


def _fills_with_rank(module: nn.Module) -> None:
    """A value that depends on the rank: only a broadcast makes it equal."""
    for number, param in enumerate(module.parameters(recurse=False)):
        param.fill_(number + 10.0 * dist.get_rank())


def _uses_init_fn() -> None:
    model = shard_blocks(_meta(), init_fn=_fills_with_rank)
    values = whole(model)
    assert {value.flatten()[0].item() for value in values.values()} == {0.0, 1.0}
    _ranks_agree(values)


def test_init_fn_fills_it_and_rank_0_wins(ranks: Ranks) -> None:
    ranks(2, _uses_init_fn)


class _Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(300, 30))


class _Forgetful(_Bare):
    """Its initialiser leaves the buffer out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(4))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


def _refuses() -> None:
    with torch.device("meta"):
        bare, forgetful = nn.Sequential(_Bare()), nn.Sequential(_Forgetful())
    with clear_error(overlap.ConfigError, "'0'", "_Bare", "reset_parameters", "init_fn"):
        overlap.fully_shard(bare)
    with clear_error(overlap.ConfigError, "'0.table'", "initialiser"):
        overlap.fully_shard(forgetful)


def test_what_nothing_fills_is_refused_by_name(ranks: Ranks) -> None:
    ranks(2, _refuses)


def _stays_tied() -> None:
    with torch.device("meta"):
        model = Model(tied=True)
    shard_blocks(model)
    assert model.head.weight is model.embedding.weight
    names = [name for name, _ in model.named_parameters() if "head" in name or "embedding" in name]
    assert names == ["embedding.weight", "head.bias"]
    loss_of(model, dist.get_rank(), 0).backward()
    assert model.embedding.weight.grad is not None


def test_tied_weights_stay_tied(ranks: Ranks) -> None:
    ranks(2, _stays_tied)
