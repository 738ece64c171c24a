"""Every contender trains what the reference trains; one that does not is found out."""

import time

import pytest
import torch
import torch.distributed as dist

from overlap.bench.step import turns
from overlap.bench.step.audit import audit
from overlap.bench.step.balance import balanced_batch
from overlap.bench.step.contenders import CONTENDERS, FLOOR
from overlap.bench.step.contenders.alone import alone
from overlap.bench.step.contenders.contender import Spec
from overlap.bench.step.reference import loss_error, reference_losses
from overlap.bench.step.rounds import Runner
from overlap.bench.step.settings import TOLERANCE, StepSettings
from overlap.bench.step.task import Task
from overlap.bench.step.workload import Workload, make_workload

STEPS, BATCH = 4, 2
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
HERE = [spec.name for spec in CONTENDERS.values() if spec.missing() is None and spec.name != FLOOR]


def workload(dtype: str, seed: int) -> Workload:
    return make_workload("tiny", DTYPES[dtype], lr=1e-3, seed=seed, rank=dist.get_rank(), ranks=dist.get_world_size())


def train(spec: Spec, dtype: str, seed: int) -> dict[str, object]:
    work = workload(dtype, seed)
    contender = spec.build(work)
    losses = torch.stack([contender.step(*work.batch(step, BATCH)) for step in range(STEPS)]).double()
    seen = audit(lambda: contender.step(*work.batch(STEPS, BATCH)), work.ranks)
    dist.all_reduce(losses)
    error = loss_error((losses / work.ranks).tolist(), reference_losses(work, STEPS, BATCH))
    return {"error": error, "calls": seen.calls, "bytes": seen.formula_bytes, "losses": losses.tolist()}


def train_named(name: str, dtype: str, seed: int) -> dict[str, object]:
    return train(CONTENDERS[name], dtype, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HERE)
def test_it_trains_as_one_process_would(ranks, name, dtype):
    seed = torch.randint(1000, ()).item()
    found = ranks(2, train_named, name, dtype, seed)[0]
    assert found["error"] <= TOLERANCE[dtype]
    assert found["calls"].keys() >= CONTENDERS[name].collectives
    first, *_, last = found["losses"]
    assert last < first


def test_one_that_shares_no_gradients_is_found_out(ranks):
    found = ranks(2, train_named, FLOOR, "fp32", 0)[0]
    assert found["error"] > 10 * TOLERANCE["fp32"]
    assert found["calls"] == {}


def count_bytes(seed: int) -> tuple[int, int]:
    params = sum(param.numel() for param in workload("fp32", seed).model().parameters())
    return train_named("ddp", "fp32", seed)["bytes"], params


def test_bytes_of_what_it_calls_are_counted(ranks):
    nbytes, params = ranks(2, count_bytes, 0)[0]
    assert nbytes == 4 * params  # an all-reduce over two ranks


def outcome_of_a_fraud(interface: str) -> tuple[dict[str, object], str]:
    """One process's training under DDP's name, as a library that silently runs something else."""
    settings = StepSettings(contenders=(FLOOR, "ddp"), size="tiny", rounds=1, steps=1)
    task = Task(settings=settings, interface=interface, own_hosts=False, communicator_rate=None, batch=BATCH)
    fraud = Spec("ddp", 0, alone, collectives=CONTENDERS["ddp"].collectives)
    known = turns.CONTENDERS
    turns.CONTENDERS = {**known, "ddp": fraud}
    try:
        return turns.measure(task, workload("fp32", 0))
    finally:
        turns.CONTENDERS = known


def test_a_library_that_runs_something_else_is_marked(ranks):
    found = ranks(2, outcome_of_a_fraud, "lo")[0]
    floor, ddp = found["outcomes"]
    assert floor["wrong"] is None
    assert ddp["wrong"] == "never called all_reduce"
    assert ddp["loss_error"] > TOLERANCE["fp32"]


def balance(seconds_per_sequence: float, wire_s: float) -> int:
    """With a floor that only sleeps, an amount known beforehand."""
    return balanced_batch(lambda batch: time.sleep(0.02 + batch * seconds_per_sequence), wire_s)


def test_the_batch_is_the_one_that_takes_as_long_as_the_wire(ranks):
    found = ranks(2, balance, 0.02, 0.22)
    assert found[0] == found[1]
    assert 7 <= found[0] <= 12  # 10 by arithmetic


def losses_of(name: str, rows: int) -> int:
    runner = Runner(CONTENDERS[name], CONTENDERS[name].build(workload("fp32", 0)), workload("fp32", 0), BATCH, "lo")
    for _ in range(rows):
        runner.turn(2)
    assert len(runner.seconds) == len(runner.sent) == rows
    return min(runner.sent)


def test_ours_counts_what_it_sends(ranks):
    stage_3, wire = ranks(2, losses_of, "ours-3", 2), ranks(2, losses_of, "ours-3-bf16wire", 2)
    assert 0 < wire[0] < stage_3[0]
