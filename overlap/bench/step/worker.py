"""One rank of ``overlap bench step``."""

import sys
import traceback
from functools import partial

import torch
import torch.distributed as dist

from overlap.bench.step.memory import peak_memory
from overlap.bench.step.shaping import keeping_to
from overlap.bench.step.task import Task
from overlap.bench.step.turns import measure
from overlap.bench.step.workload import make_workload
from overlap.demo.worker import run


def bench_rank(task: Task, _: torch.device) -> None:
    """Do what the parent asks for, with one thread: the other cores are the other ranks'."""
    torch.set_num_threads(1)
    settings = task.settings
    workload = make_workload(
        settings.size,
        settings.param_dtype,
        lr=settings.lr,
        seed=settings.seed,
        rank=dist.get_rank(),
        ranks=dist.get_world_size(),
        engine_options=settings.engine_options,
    )
    with keeping_to(task.communicator_rate):
        found = measure(task, workload) if task.memory_of is None else peak_memory(task, workload)
    if workload.rank == 0:
        task.write(found)


if __name__ == "__main__":
    run(partial(bench_rank, Task.from_json(sys.argv[1])), show=traceback.print_exception)
