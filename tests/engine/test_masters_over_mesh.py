"""Hybrid sharding with masters over all ranks of the mesh: parameters are gathered within a row, once across rows."""

import time
from typing import Any

import pytest
import torch
from support.chain import Chain, chain, data, sharded_chain, train_beside_twin
from support.clear_error import clear_error
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import overlap

SHAPES = ((2, 2), (2, 1), (1, 2), (4, 1), (1, 4))


def _loss(net: nn.Module, step: int, rank: int | None = None) -> Tensor:
    return net(data(step, rank)).square().mean()


def _sharded(shape: tuple[int, int], **options: Any) -> Chain:
    return sharded_chain(mesh=init_device_mesh("cpu", shape), masters="mesh", **options)


def _trains(shape: tuple[int, int], stage: int) -> None:
    model = _sharded(shape, stage=stage)
    assert [*train_beside_twin(model, micros=2)] == [0, 1, 2, 3]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_trains_as_one_process(ranks: Ranks, shape: tuple[int, int], stage: int) -> None:
    ranks(shape[0] * shape[1], _trains, shape, stage)


def _shards_and_bytes(stage: int) -> None:
    model = _sharded((2, 2), stage=stage)
    for step in range(4):
        _loss(model, step).backward()
        with torch.no_grad():
            for param in model.parameters():
                param.mul_(0.9)
    engine = overlap.engine_of(model)
    for unit in engine.units:
        for flat in unit.sharded_flats:
            assert flat.layout.world == 4
            assert flat.master.numel() == flat.grad.numel() == flat.layout.shard_numel
    report, sent = engine.wire(), engine.passes.ledger.latest()
    assert report.counted == pytest.approx(report.formula + sum(report.items.values()), abs=1e-6)
    moved = engine.units[1:]  # the root has nothing of its own
    assert sent["refresh"] == sum(unit.refresh_bytes for unit in moved)  # once a step, whatever backward gathers again
    again = [op.index for op in engine.plan.ops if op.kind == "gather"]
    assert sent["gather"] == sum(engine.units[n].gather_bytes for n in again)
    assert len(again) > len(moved) or stage < 3


@pytest.mark.parametrize("stage", [2, 3])
def test_weights_cross_between_rows_once_a_step(ranks: Ranks, stage: int) -> None:
    ranks(4, _shards_and_bytes, stage)


def _evaluates() -> None:
    """Changes are seen whoever makes them; without any, nothing crosses."""
    model, twin = _sharded((2, 2)), chain()
    counter = overlap.engine_of(model).comms["gather"].counter
    for change in (1.0, 0.5, 1.0):
        with torch.no_grad():
            for param in (*model.parameters(), *twin.parameters()):
                param.mul_(change)
            before = counter.snapshot()
            torch.testing.assert_close(model(data()), twin(data()))
        crossed = (counter.snapshot() - before).sent.get("refresh", 0)
        assert crossed > 0
        with torch.no_grad():
            before = counter.snapshot()
            torch.testing.assert_close(model(data()), twin(data()))
        assert "refresh" not in (counter.snapshot() - before).sent


def test_what_has_changed_crosses_again_and_nothing_else(ranks: Ranks) -> None:
    ranks(4, _evaluates)


def _full_tensors() -> None:
    model, twin = _sharded((2, 2)), chain()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert mine.device_mesh.size() == 4
        assert torch.equal(mine.full_tensor(), theirs)
    with overlap.summon_full_params(model):
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_parameters_can_be_read_whole(ranks: Ranks) -> None:
    ranks(4, _full_tensors)


def _refused() -> None:
    with clear_error(overlap.ConfigError, "masters", "mesh", "two dimensions"):
        sharded_chain(masters="mesh")
    with clear_error(overlap.ConfigError, "masters", "copy, mesh", "row"):
        sharded_chain(masters="row")


def test_a_mesh_of_one_dimension_is_refused(ranks: Ranks) -> None:
    ranks(2, _refused)


def _slow_between_rows(model: Chain) -> None:
    """The network between rows is late: what it brings is old by the time."""
    column = overlap.engine_of(model).comms["gather"]._column
    gather = column.all_gather

    def late(pieces: Any, kind: str) -> None:
        gather(pieces, kind)
        time.sleep(0.2)

    column.all_gather = late  # type: ignore[method-assign]


def _halve(*nets: nn.Module) -> None:
    with torch.no_grad():
        for net in nets:
            for param in net.parameters():
                param.mul_(0.5)


def _fails_and_changes() -> None:
    model, twin = _sharded((2, 1), prefetch=2), chain()
    _loss(model, 0).backward()
    _slow_between_rows(model)
    model.blocks[0].linear.register_forward_pre_hook(_raise := lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(data())
    model.blocks[0].linear._forward_pre_hooks.clear()
    assert callable(_raise)
    _halve(model, twin)
    with torch.no_grad():
        torch.testing.assert_close(model(data()), twin(data()))


def test_gathers_of_a_failed_pass_do_not_bring_old_weights(ranks: Ranks) -> None:
    ranks(2, _fails_and_changes)


def _unshards_and_changes() -> None:
    model, twin = _sharded((2, 1)), chain()
    model.blocks[0].unshard()
    model.blocks[0].reshard()
    _halve(model, twin)
    _slow_between_rows(model)
    handle = model.blocks[0].unshard(async_op=True)
    _halve(model, twin)
    with torch.no_grad():
        torch.testing.assert_close(model(data()), twin(data()))
    assert handle is not None


def test_nor_do_those_that_were_asked_for_by_hand(ranks: Ranks) -> None:
    ranks(2, _unshards_and_changes)


def _freezes() -> None:
    model = _sharded((2, 2), stage=3)
    _loss(model, 0).backward()
    engine = overlap.engine_of(model)
    update = overlap.AdamW(model.blocks[0].parameters(), lr=1e-2)
    for step in range(3):
        _loss(model, step).backward()
        update.step()
        model.zero_grad()
    moved = next(unit for unit in engine.units if unit.name == "blocks.0")
    assert engine.passes.ledger.latest()["refresh"] == moved.refresh_bytes


def test_only_what_has_changed_crosses(ranks: Ranks) -> None:
    ranks(4, _freezes)
