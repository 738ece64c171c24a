"""All contenders within one set of ranks: built, warmed up, looked at, timed in turns, and checked."""

from dataclasses import asdict
from functools import partial
from statistics import median_low
from typing import Any

import torch
import torch.distributed as dist

from overlap.bench.netlab.net import parse_net
from overlap.bench.step.audit import Audit, audit
from overlap.bench.step.balance import balanced_batch
from overlap.bench.step.contenders import CONTENDERS, FLOOR
from overlap.bench.step.contenders.alone import alone
from overlap.bench.step.contenders.contender import Spec
from overlap.bench.step.ideal import ideal_bytes, wire_ms
from overlap.bench.step.reference import loss_error, reference_losses
from overlap.bench.step.results import Outcome
from overlap.bench.step.rounds import Runner, take_turns
from overlap.bench.step.settings import TOLERANCE
from overlap.bench.step.task import Task
from overlap.bench.step.workload import Workload

BALANCE_NET = parse_net("1gbit")
WARM_UP = 2


def measure(task: Task, workload: Workload) -> dict[str, Any]:
    """Let all take turns. A collective; every rank returns what rank 0 is to write."""
    settings, tell = task.settings, partial(_tell, workload.rank)
    batch = task.batch or _balance(workload)
    skipped = {name: why for name in settings.contenders if (why := _why_skipped(CONTENDERS[name], task))}
    runners, audits = [], {}
    for name in settings.contenders:
        if name in skipped:
            continue
        tell(f"building {name}")
        spec = CONTENDERS[name]
        runner = Runner(spec, spec.build(workload), workload, batch, task.interface)
        for _ in range(WARM_UP):
            runner.step()
        audits[name] = audit(runner.step, workload.ranks)
        runners.append(runner)
    tell(f"{len(runners)} contenders, {batch} sequences per rank")
    take_turns(runners, rounds=settings.rounds, steps=settings.steps, tell=tell)
    tell("checking losses")
    reference = _reference(workload, len(runners[0].losses), batch)
    params = sum(param.numel() for param in workload.model().parameters())
    found = {name: Outcome(contender=name, skipped=why) for name, why in skipped.items()}
    for runner in runners:
        found[runner.spec.name] = _outcome(runner, audits[runner.spec.name], reference, params, task)
    outcomes = [asdict(found[name]) for name in settings.contenders]
    return {"batch": batch, "params": params, "outcomes": outcomes}


def _tell(rank: int, what: str) -> None:
    if rank == 0:
        print(what, flush=True)


def _why_skipped(spec: Spec, task: Task) -> str | None:
    if task.communicator_rate is not None and not spec.ours and spec.name != FLOOR:
        return "its communication cannot be slowed here"
    return spec.missing()


def _balance(workload: Workload) -> int:
    """As many sequences as make the floor as long as stage 3 at 1 Gbit/s."""
    contender = alone(workload)
    params = sum(param.numel() for param in workload.model().parameters())
    nbytes = _ideal_bytes(CONTENDERS["ours-3"], params, workload)
    return balanced_batch(lambda batch: contender.step(*workload.batch(0, batch)), wire_ms(nbytes, BALANCE_NET) / 1e3)


def _ideal_bytes(spec: Spec, params: int, workload: Workload) -> float:
    if spec.stage is None:
        return 0.0
    in_bf16 = spec.bf16_reduce or (spec.reduces_in_param_dtype and workload.dtype == torch.bfloat16)
    return ideal_bytes(
        spec.stage,
        params,
        workload.ranks,
        gather_itemsize=workload.dtype.itemsize,
        reduce_itemsize=2 if in_bf16 else 4,
    )


def _reference(workload: Workload, steps: int, batch: int) -> list[float]:
    """Rank 0 computes while the others wait."""
    losses: list[Any] = [reference_losses(workload, steps, batch) if workload.rank == 0 else None]
    dist.broadcast_object_list(losses)
    found: list[float] = losses[0]
    return found


def _outcome(runner: Runner, seen: Audit, reference: list[float], params: int, task: Task) -> Outcome:
    spec, world = runner.spec, runner.workload.ranks
    seconds = torch.tensor(runner.seconds, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    losses = torch.stack(runner.losses).double()
    dist.all_reduce(losses)
    mean = (losses / world).tolist()
    error = loss_error(mean, reference)
    compared = spec.name != FLOOR or world == 1  # the floor's ranks train apart
    return Outcome(
        contender=spec.name,
        seconds=seconds.tolist(),
        losses=mean if compared else [],
        loss_error=error if compared else None,
        counted_bytes=median_low(runner.sent) if runner.contender.sent is not None else None,
        kernel_bytes=median_low(runner.kernel_sent) if task.own_hosts else None,
        formula_bytes=seen.formula_bytes,
        ideal_bytes=_ideal_bytes(spec, params, runner.workload),
        collectives={} if spec.ours else seen.calls,  # our lanes' threads are not seen; the engine counts for itself
        options=runner.contender.options,
        wrong=_wrong(spec, seen, world, error if compared else 0.0, _allowed(spec, task.settings.tolerance)),
    )


def _allowed(spec: Spec, tolerance: float) -> float:
    """Gradients that travel in bf16 are rounded as coarsely as bf16 compute rounds them."""
    return max(tolerance, TOLERANCE["bf16"]) if spec.bf16_reduce else tolerance


def _wrong(spec: Spec, seen: Audit, world: int, error: float, tolerance: float) -> str | None:
    never = spec.collectives - set(seen.calls)
    if world > 1 and never:
        return f"never called {', '.join(sorted(never))}"
    return None if error <= tolerance else f"losses differ from the reference by {error:.1e}, allowed {tolerance:.1e}"
