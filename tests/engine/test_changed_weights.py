"""Weights that change in unusual ways are either used, or refused: never silently old."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.chain import chain, close, data, sharded_chain, twin_gradients
from support.clear_error import clear_error
from support.ranks import Ranks
from torch import nn

import overlap

STAGES = (0, 1, 2, 3)


def _trained(model: nn.Module) -> nn.Module:
    for step in range(2):
        model(data(step)).square().mean().backward()
        model.zero_grad()
    return model


def _local_edits(stage: int, dtype: torch.dtype | None) -> None:
    model = _trained(sharded_chain(stage=stage, param_dtype=dtype))
    before = model(data()).detach().clone()
    with torch.no_grad():
        for param in model.parameters():
            param.to_local().mul_(2)
    assert not torch.equal(model(data()), before)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("stage", STAGES)
def test_edits_of_the_local_tensor_reach_the_next_forward(ranks: Ranks, stage: int, dtype: torch.dtype | None) -> None:
    ranks(2, _local_edits, stage, dtype)


def _data_edits() -> None:
    model = _trained(sharded_chain(stage=2))
    before = model(data()).detach().clone()
    for param in model.parameters():
        param.data.to_local().mul_(2)
    overlap.engine_of(model).mark_changed()
    assert not torch.equal(model(data()), before)


def test_edits_of_data_reach_it_once_they_are_told(ranks: Ranks) -> None:
    ranks(2, _data_edits)


def _dcp_load(folder: str) -> None:
    model = _trained(sharded_chain(stage=2, param_dtype=torch.bfloat16))
    saved = model(data()).detach().clone()
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(3)
    assert not torch.equal(model(data()), saved)
    dcp.load({"model": model.state_dict()}, checkpoint_id=folder)
    assert torch.equal(model(data()), saved)


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_loaded_in_place_is_used(ranks: Ranks, tmp_path: object) -> None:
    ranks(2, _dcp_load, str(tmp_path))


def _two_optimizers() -> None:
    model = sharded_chain(stage=3, param_dtype=torch.bfloat16)
    blocks = list(model.blocks)
    ours = overlap.AdamW([block.linear.bias for block in blocks])
    weights = [block.linear.weight for block in blocks]
    model(data()).square().mean().backward()
    ours.step()
    before = model(data()).detach().clone()
    for weight in weights:
        weight.data.to_local().mul_(2)  # as an optimizer that writes through .data
    torch.optim.SGD(weights, lr=0.0).step()
    assert not torch.equal(model(data()), before)


def test_a_second_optimizer_that_writes_through_data_is_seen(ranks: Ranks) -> None:
    ranks(2, _two_optimizers)


def _assigned() -> None:
    model = _trained(sharded_chain())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    with clear_error(overlap.StateError, "blocks.0.linear.weight", "assign=False"):
        model(data())


def test_parameters_put_in_place_of_ours_are_refused(ranks: Ranks) -> None:
    ranks(2, _assigned)


def _old_graph(stage: int) -> None:
    model = _trained(sharded_chain(stage=stage))
    optimizer = overlap.AdamW(model.parameters(), lr=0.1)
    first, second = model(data(0)).square().mean(), model(data(1)).square().mean()
    first.backward()
    optimizer.step()
    with clear_error(overlap.StateError, "changed since its forward"):
        second.backward()
    optimizer.zero_grad()
    _matches_twin(model, optimizer)


def _matches_twin(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """After a refused graph a good step is right."""
    twin = chain()
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            theirs.copy_(mine.full_tensor())
    model(data(2)).square().mean().backward()
    twin_gradients(twin, lambda net, rank: net(data(2, rank)).square().mean())
    assert close(model.parameters(), twin.parameters())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_backward_of_a_graph_from_before_an_update_is_refused(ranks: Ranks, stage: int) -> None:
    ranks(2, _old_graph, stage)


def _toggled() -> None:
    model = _trained(sharded_chain())
    first = model.blocks[0].linear.weight
    first.requires_grad_(False)
    model(data()).square().mean().backward()
    assert first.grad is None
    model.zero_grad()
    first.requires_grad_(True)
    model(data()).square().mean().backward()
    assert first.grad is not None


def test_freezing_and_unfreezing_between_steps_is_followed(ranks: Ranks) -> None:
    ranks(2, _toggled)
