"""Each kind of fault is found, and the first place of it named: step, unit, tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from verify import models
from verify.models import Block, check, data, is_sharded, local, output_loss, seeded

import overlap
from overlap.engine.gradients import Gradients
from overlap.shard.flat import Flat
from overlap.verify import Finding, VerifyReport


def _first(report: VerifyReport, kind: str, step: int, unit: str, tensor: str) -> Finding:
    found = report.first
    assert found is not None, report.text()
    assert not report.ok
    assert (found.kind, found.step, found.unit, found.tensor) == (kind, step, unit, tensor), report.text()
    assert found.cure in report.text()
    assert len(set(_everywhere(report.text()))) == 1, "every rank has the same report"
    return found


def _warned(report: VerifyReport, kind: str, *tensors: str) -> tuple[Finding, ...]:
    assert report.ok, report.text()
    assert {finding.kind for finding in report.findings} == {kind}, report.text()
    assert tuple(finding.tensor for finding in report.warnings) == tensors
    return report.warnings


def _everywhere(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _stale(stage: int, dtype: torch.dtype | None) -> None:
    report = check(lambda: seeded(models.StaleBlock), options={"stage": stage, "param_dtype": dtype}, rtol=1e-4)
    found = _first(report, "forward", 2, "blocks.1", "output[0]")
    assert found.ranks == (0, 1)
    assert found.max_abs_error is not None
    assert found.tolerance is not None
    assert found.max_abs_error > found.tolerance > 0
    assert report.steps == 2, "the run ends with the step of the first error"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_stale_alias_of_a_weight_is_found_in_the_step_after_the_update(ranks: Ranks, stage: int) -> None:
    ranks(2, _stale, stage, None)


def _cloned() -> None:
    (finding,) = _warned(check(lambda: seeded(models.CloneBlock)), "no_gradient", "blocks.1.linear.weight")
    assert finding.unit == "blocks.1"


def test_a_weight_of_which_only_a_copy_is_used_never_gets_a_gradient(ranks: Ranks) -> None:
    ranks(2, _cloned)


def _in_between() -> None:
    _first(check(models.Between), "forward", 1, "", "input[0] of blocks.2")


def test_code_between_units_is_told_from_the_units(ranks: Ranks) -> None:
    ranks(2, _in_between)


def _other_order() -> None:
    found = _first(check(models.TwoFaced), "order", 1, "blocks.2", "")
    assert found.detail == "enters blocks.2 where the unsharded model enters blocks.0"


def test_units_in_another_order(ranks: Ranks) -> None:
    ranks(2, _other_order)


def _structure_of_rank() -> nn.Module:
    model = seeded()
    if dist.get_rank() == 2:
        model.blocks[1].register_buffer("table", torch.zeros(3))
    return model


def _width_of_rank() -> nn.Module:
    model = seeded()
    model.head = nn.Linear(models.WIDTH, 2 + (dist.get_rank() == 2))
    return model


def _structure(make: Callable[[], nn.Module], tensor: str, detail: str) -> None:
    found = _first(check(make), "structure", 0, "", tensor)
    assert found.ranks == (2,)
    assert found.detail == detail


@pytest.mark.parametrize(
    ("make", "tensor", "detail"),
    [
        (_structure_of_rank, "blocks.1.table", "blocks.1.table [3] float32 where rank 0 builds nothing"),
        (
            _width_of_rank,
            "head.weight",
            "head.weight [3, 16] float32 trained where rank 0 builds head.weight [2, 16] float32 trained",
        ),
    ],
)
def test_a_factory_that_depends_on_the_rank(ranks: Ranks, make: Any, tensor: str, detail: str) -> None:
    ranks(3, _structure, make, tensor, detail)


_built: list[nn.Module] = []


def _grows() -> nn.Module:
    _built.append(seeded())
    return nn.Sequential(*(Block() for _ in _built))


def _other_in_second_call() -> None:
    _built.clear()
    found = _first(check(_grows, options={"unit": None}), "structure", 0, "", "1.linear.weight")
    assert "in the second call" in found.detail


def test_a_factory_that_builds_another_model_when_called_again(ranks: Ranks) -> None:
    ranks(2, _other_in_second_call)


def _values_of_rank() -> nn.Module:
    model = seeded()
    with torch.no_grad():
        model.blocks[1].linear.bias += dist.get_rank()
    model.register_buffer("count", torch.tensor(dist.get_rank()))
    return model


def _other_start() -> None:
    for finding in _warned(check(_values_of_rank), "initial_ranks", "blocks.1.linear.bias", "count"):
        assert (finding.step, finding.ranks) == (0, (1, 2))
        assert finding.unit == ("" if finding.tensor == "count" else "blocks.1")


def test_values_that_differ_between_ranks_before_sharding(ranks: Ranks) -> None:
    ranks(3, _other_start)


def _bad_sharding(monkeypatch: pytest.MonkeyPatch) -> VerifyReport:
    true_shard = overlap.shard

    def shard(model: nn.Module, **options: Any) -> nn.Module:
        sharded = true_shard(model, **options)
        with torch.no_grad():
            sharded.head.weight.mul_(1.001)
        return sharded

    monkeypatch.setattr(overlap, "shard", shard)
    return check()


def _other_initial_value() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        _first(_bad_sharding(monkeypatch), "initial", 0, "", "head.weight")


def test_a_value_that_sharding_changed(ranks: Ranks) -> None:
    ranks(2, _other_initial_value)


class _Editing:
    """A loss that edits one parameter of the sharded model when it is called for the second time."""

    def __init__(self, name: str, factor: float, ranks: tuple[int, ...] = (0, 1)) -> None:
        self.name, self.factor, self.ranks, self.calls = name, factor, ranks, 0

    def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
        if is_sharded(model):
            self.calls += 1
            if self.calls == 2 and dist.get_rank() in self.ranks:
                local(dict(model.named_parameters())[self.name].data).mul_(self.factor)
        return output_loss(model, batch)


def _edited(stage: int) -> None:
    report = check(loss=_Editing("blocks.2.linear.weight", 1.01), options={"stage": stage})
    _first(report, "edited", 2, "blocks.2", "blocks.2.linear.weight")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_weight_that_is_edited_behind_the_engines_back(ranks: Ranks, stage: int) -> None:
    ranks(2, _edited, stage)


def _clamped() -> None:
    _first(check(lambda: seeded(models.ClampedBlock)), "edited", 1, "blocks.1", "blocks.1.linear.weight")


def test_a_write_to_a_weight_in_forward(ranks: Ranks) -> None:
    ranks(2, _clamped)


def _odd_replica() -> None:
    report = check(loss=_Editing("blocks.0.linear.bias", 1 + 1e-6, ranks=(1,)))
    found = _first(report, "replica", 2, "blocks.0", "blocks.0.linear.bias")
    assert found.ranks == (1,)


def test_a_replica_that_differs_by_a_rounding(ranks: Ranks) -> None:
    ranks(2, _odd_replica)


def _not_refreshed(stage: int) -> None:
    """A fault of the engine: compute goes on with the weights of before the update."""
    refresh = Flat.refresh_shard

    def not_again(flat: Flat, *told: Callable[[Flat], None]) -> bool:
        before = flat.shard.clone()
        changed = refresh(flat, *told)
        if before.any():
            flat.shard.copy_(before)
        return changed

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Flat, "refresh_shard", not_again)
        report = check(options={"stage": stage, "param_dtype": torch.bfloat16}, rtol=0.0, atol=0.0)
    _first(report, "forward", 2, "blocks.0", "output[0]")


@pytest.mark.parametrize("stage", [1, 3])
def test_an_engine_that_computes_with_old_weights(ranks: Ranks, stage: int) -> None:
    ranks(2, _not_refreshed, stage)


def _loses_gradients(number: int) -> None:
    """A fault of the engine: one bucket is not reduced."""
    reduce = Gradients.reduce
    with pytest.MonkeyPatch.context() as monkeypatch:
        skip = lambda gradients, bucket: None if bucket == number else reduce(gradients, bucket)  # noqa: E731
        monkeypatch.setattr(Gradients, "reduce", skip)
        report = check()
    found = report.first
    assert found is not None
    assert (found.kind, found.step) == ("gradient", 1)
    assert len(report.errors) < 8, "the other buckets are right"


@pytest.mark.parametrize("number", [0, 1])
def test_an_engine_that_loses_a_bucket(ranks: Ranks, number: int) -> None:
    ranks(2, _loses_gradients, number)


def _badly_scaled(model: nn.Module, batch: Tensor) -> Tensor:
    if is_sharded(model):
        model.set_gradient_divide_factor(1.0)
    return output_loss(model, batch)


def _scaled(stage: int) -> None:
    report = check(loss=_badly_scaled, options={"stage": stage})
    found = _first(report, "gradient", 1, "", "head.bias")
    assert "every element is 2 times the expected one" in found.detail
    assert len(report.errors) == 8, "all gradients differ"
    assert report.errors[-1].unit == "blocks.0", "in the order of backward"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_wrong_divide_factor(ranks: Ranks, stage: int) -> None:
    ranks(2, _scaled, stage)


def _own_rate(params: Any) -> torch.optim.Optimizer:
    """Takes another learning rate for shards."""
    mine = list(params)
    return torch.optim.SGD(mine, lr=0.11 if any(isinstance(param, DTensor) for param in mine) else 0.1)


def _updated_otherwise() -> None:
    report = check(optimizer=_own_rate)
    _first(report, "parameter", 1, "blocks.0", "blocks.0.linear.weight")


def test_an_optimizer_that_treats_shards_otherwise(ranks: Ranks) -> None:
    ranks(2, _updated_otherwise)


def _with_penalty(model: nn.Module, batch: Tensor) -> Tensor:
    """A weight penalty over what this rank has of the weights."""
    penalty = sum(local(param).detach().square().sum() for param in model.parameters())
    return output_loss(model, batch) + 0.1 * penalty


def _other_loss() -> None:
    _first(check(loss=_with_penalty), "loss", 1, "", "loss")


def test_a_loss_that_reads_shards(ranks: Ranks) -> None:
    ranks(2, _other_loss)


def _counting(model: nn.Module, batch: Tensor) -> Tensor:
    if is_sharded(model):
        model.count += 1
    return output_loss(model, batch)


def _with_count() -> nn.Module:
    model = seeded()
    model.register_buffer("count", torch.zeros((), dtype=torch.long))
    return model


def _other_buffer() -> None:
    found = _first(check(_with_count, loss=_counting), "buffer", 1, "", "count")
    assert (found.max_abs_error, found.tolerance) == (1.0, 0.0)


def test_a_buffer_that_only_the_sharded_model_changes(ranks: Ranks) -> None:
    ranks(2, _other_buffer)


def _running_statistics() -> None:
    report = check(lambda: seeded(models.NormBlock))
    names = ("blocks.1.norm.running_mean", "blocks.1.norm.running_var")
    for finding in _warned(report, "buffer_ranks", *names):
        assert (finding.step, finding.ranks, finding.unit) == (1, (1, 2), "blocks.1")


def test_running_statistics_are_right_and_differ_between_ranks(ranks: Ranks) -> None:
    ranks(3, _running_statistics)


def _wanders() -> None:
    (finding,) = _warned(check(models.Wandering, steps=4), "deviation", "")
    assert finding.step == 2
    assert "in all" in finding.detail


def test_an_order_of_units_that_changes(ranks: Ranks) -> None:
    ranks(2, _wanders)


def _noisy() -> None:
    report = check(lambda: seeded(models.NoisyBlock))
    _first(report, "forward", 1, "blocks.1", "output[0]")
    assert "not_deterministic" in {finding.kind for finding in report.warnings}


def test_a_model_that_does_not_repeat_itself_is_told_from_a_wrong_one(ranks: Ranks) -> None:
    ranks(2, _noisy)


def _ranked() -> None:
    (finding,) = _warned(check(lambda: seeded(models.RankBlock)), "rank_dependent", "loss")
    assert finding.ranks == (1,)


def test_a_model_that_depends_on_the_rank(ranks: Ranks) -> None:
    ranks(2, _ranked)


def _infinite(model: nn.Module, batch: Tensor) -> Tensor:
    return output_loss(model, batch) * float("nan")


def _not_a_number() -> None:
    (finding,) = _warned(check(loss=_infinite), "not_finite", "loss")
    assert finding.step == 1


def test_not_a_number_in_both_is_not_the_shardings_fault(ranks: Ranks) -> None:
    ranks(2, _not_a_number)


def _unused_block() -> nn.Module:
    model = seeded()
    model.spare = nn.Linear(4, 4)
    return model


def _unused() -> None:
    report = check(_unused_block)
    _warned(report, "no_gradient", "spare.weight", "spare.bias")
    assert "use it in forward, freeze it, or remove it" in report.text()


def test_parameters_that_are_never_used(ranks: Ranks) -> None:
    ranks(2, _unused)


def test_batches_are_those_of_the_rank():
    assert not torch.equal(data(0, 0), data(1, 0))
