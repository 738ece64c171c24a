"""Dtypes: of compute, of the wire, of gradients, of outputs; the master stays fp32."""

from functools import partial
from typing import Any

import pytest
import torch
from support.models import BLOCKS, SMALL, VOCAB, WIDTH, loss_of, seeded
from support.pair import Sharded, assert_same_bits, shard_blocks, whole
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import overlap
from overlap.schedule.op import LaneName

BF16, FP32 = torch.bfloat16, torch.float32
STAGES = (1, 3)  # parameters that stay, and parameters that come and go


class _Probe(nn.Module):
    """Notes the dtypes that its forward meets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCAB, WIDTH))
        self.short = nn.Parameter(torch.randn(VOCAB, WIDTH).to(BF16))
        self.register_buffer("table", torch.arange(WIDTH) / 7)
        self.met: dict[str, torch.dtype] = {}

    def forward(self, x: Tensor, scales: dict[str, Tensor], ids: Tensor) -> Tensor:
        self.met = {
            "x": x.dtype,
            "scale": scales["scale"].dtype,
            "ids": ids.dtype,
            "table": self.table.dtype,
            "weight": self.weight.dtype,
            "short": self.short.dtype,
        }
        mixed = x.float() * scales["scale"].float() * self.table
        return mixed.to(self.weight.dtype) @ self.weight.t() + mixed.to(BF16) @ self.short.t().to(BF16)


def _probe(**options: Any) -> tuple[_Probe, Tensor]:
    torch.manual_seed(0)
    probe = overlap.fully_shard(_Probe(), replicate_max_numel=SMALL, **options)
    output = probe(torch.randn(3, WIDTH), {"scale": torch.ones(())}, torch.arange(3))
    output.float().sum().backward()
    return probe, output


def _compute_dtype(stage: int) -> None:
    probe, output = _probe(stage=stage, param_dtype=BF16)
    assert probe.met == {"x": BF16, "scale": BF16, "ids": torch.int64, "table": FP32, "weight": BF16, "short": BF16}
    assert output.dtype is BF16
    assert probe.weight.dtype is probe.short.dtype is FP32, "masters"
    assert probe.weight.grad.dtype is FP32
    assert probe.table.dtype is FP32


@pytest.mark.parametrize("stage", STAGES)
def test_compute_and_inputs_are_cast_buffers_and_masters_are_not(ranks: Ranks, stage: int) -> None:
    ranks(2, _compute_dtype, stage)


def _keeps_own_dtypes(stage: int) -> None:
    probe, output = _probe(stage=stage)
    assert (probe.met["weight"], probe.met["short"], probe.met["x"]) == (FP32, BF16, FP32)
    update = overlap.AdamW(probe.parameters(), lr=1e-2)
    before = whole(probe)
    update.step()
    assert probe.weight.dtype is probe.short.dtype is FP32
    assert all(not torch.equal(value, before[name]) for name, value in whole(probe).items())
    again = probe(torch.randn(3, WIDTH), {"scale": torch.ones(())}, torch.arange(3))
    assert probe.met["short"] is BF16
    assert not torch.equal(again, output)


@pytest.mark.parametrize("stage", STAGES)
def test_a_unit_of_two_dtypes_keeps_both(ranks: Ranks, stage: int) -> None:
    ranks(2, _keeps_own_dtypes, stage)


def _casts_as_told() -> None:
    probe, output = _probe(param_dtype=BF16, cast_forward_inputs=False, output_dtype=torch.float16)
    assert (probe.met["x"], probe.met["scale"], probe.met["weight"]) == (FP32, FP32, BF16)
    assert output.dtype is torch.float16


def test_inputs_are_left_and_outputs_cast_on_request(ranks: Ranks) -> None:
    ranks(1, _casts_as_told)


def _accumulates_small_steps(stage: int, build: partial[torch.optim.Optimizer]) -> None:
    run = Sharded(stage=stage, param_dtype=BF16, optimizer=build)
    run.step()
    before = whole(run.model)
    run.step()
    after = whole(run.model)
    for name in ("embedding.weight", "blocks.1.up.weight", "head.weight"):
        moved = before[name] != after[name]
        seen = before[name].bfloat16() != after[name].bfloat16()
        assert moved.float().mean() > 4 * seen.float().mean(), "most changes are below bf16's resolution"


@pytest.mark.parametrize("build", [partial(overlap.AdamW, lr=1e-6), partial(torch.optim.AdamW, lr=1e-6)])
@pytest.mark.parametrize("stage", STAGES)
def test_the_master_moves_by_less_than_compute_can_see(
    ranks: Ranks, stage: int, build: partial[torch.optim.Optimizer]
) -> None:
    ranks(2, _accumulates_small_steps, stage, build)


def _gradients(**options: Any) -> dict[str, Tensor]:
    model = shard_blocks(seeded(), **options)
    loss_of(model, torch.distributed.get_rank(), 0).backward()
    return {name: param.grad.full_tensor() for name, param in model.named_parameters()}


def _relative_error(mine: Tensor, exact: Tensor) -> float:
    return float((mine.float() - exact).norm() / exact.norm())


def _rounds_once(world: int, stage: int) -> None:
    """bf16 has 8 bits: rounding each rank's part, or the sum, costs at most 2**-8 of it."""
    exact = _gradients(stage=stage)
    for options in ({"reduce_dtype": BF16}, {"grad_dtype": BF16}):
        rounded = _gradients(stage=stage, **options)
        for name, grad in rounded.items():
            assert grad.dtype is options.get("grad_dtype", FP32)
            assert 0 < _relative_error(grad, exact[name]) < 2**-8, f"{name} with {options}"


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_on_the_wire_or_in_gradients_costs_one_rounding(ranks: Ranks, stage: int) -> None:
    ranks(2, _rounds_once, 2, stage)


def _halves_the_wire() -> None:
    sent = {}
    for dtype in (FP32, BF16):
        run = Sharded(reduce_dtype=dtype)
        comm = run.engine.comms[LaneName.REDUCE]
        before = comm.counter.snapshot()
        run.step()
        sent[dtype] = (comm.counter.snapshot() - before).sent
    assert {kind: size // 2 for kind, size in sent[FP32].items()} == sent[BF16]


def test_bf16_on_the_wire_halves_its_bytes(ranks: Ranks) -> None:
    ranks(2, _halves_the_wire)


def _trains_close_to_fp32(stage: int) -> None:
    options = {"param_dtype": BF16, "reduce_dtype": BF16, "grad_dtype": BF16}
    rounded, exact = (Sharded(stage=stage, optimizer=partial(overlap.AdamW, lr=1e-3), **o) for o in (options, {}))
    for step in range(10):
        mine, theirs = (loss_of(run.model, 0, step).item() for run in (rounded, exact))
        assert mine == pytest.approx(theirs, rel=2**-8)
        rounded.step()
        exact.step()
    assert len(list(rounded.model.blocks)) == BLOCKS
    assert all(isinstance(param, DTensor) and param.dtype is FP32 for param in rounded.model.parameters())


@pytest.mark.parametrize("stage", STAGES)
def test_training_in_bf16_follows_fp32(ranks: Ranks, stage: int) -> None:
    ranks(2, _trains_close_to_fp32, stage)


def _one_dtype_whatever_the_stage() -> None:
    trained = []
    for stage in (1, 2, 3):
        run = Sharded(stage=stage, param_dtype=BF16, optimizer=partial(overlap.AdamW, lr=1e-2))
        for _ in range(3):
            run.step()
        trained.append(whole(run.model))
    assert_same_bits(trained[0], trained[1], "between stages 1 and 2")
    assert_same_bits(trained[0], trained[2], "between stages 1 and 3")


def test_stages_1_to_3_train_in_bf16_to_the_same_bits(ranks: Ranks) -> None:
    ranks(2, _one_dtype_whatever_the_stage)


class _Norm(nn.LayerNorm):
    """Notes the dtypes it computes in."""

    seen: tuple[torch.dtype, torch.dtype] | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.dtype, self.weight.dtype
        return super().forward(x)


def _keeps_one_in_fp32(stage: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), _Norm(16), nn.Linear(16, 16))
    overlap.fully_shard(model[1], stage=stage, param_dtype=FP32, replicate_max_numel=0)
    overlap.shard(model, stage=stage, unit=nn.Linear, param_dtype=BF16, replicate_max_numel=0)
    update = overlap.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        out = model(torch.ones(2, 16))
        assert out.dtype == BF16
        assert model[1].seen == (FP32, FP32)
        loss = out.float().square().mean()
        loss.backward()
        update.step()
        update.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]


@pytest.mark.parametrize("stage", STAGES)
def test_a_unit_may_compute_in_a_dtype_of_its_own(ranks: Ranks, stage: int) -> None:
    ranks(2, _keeps_one_in_fp32, stage)
