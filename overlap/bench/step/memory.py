"""Peak memory of a contender, in processes where nothing else has ever been."""

import re
from pathlib import Path
from typing import Any

import torch.distributed as dist

from overlap.bench.step.contenders import CONTENDERS
from overlap.bench.step.rounds import Runner
from overlap.bench.step.task import Task
from overlap.bench.step.workload import Workload

STEPS = 3


def peak_memory(task: Task, workload: Workload) -> dict[str, Any]:
    """Build one contender, take three steps, and return the largest resident set of any rank, in bytes.

    It has everything in it, Python and torch too: ``start_bytes`` is what was there before the contender was built.
    """
    assert task.memory_of is not None
    assert task.batch is not None
    start = _status("VmRSS")
    spec = CONTENDERS[task.memory_of]
    runner = Runner(spec, spec.build(workload), workload, task.batch, task.interface)
    for _ in range(STEPS):
        runner.step()
    everyone: list[Any] = [None] * workload.ranks
    dist.all_gather_object(everyone, (_status("VmHWM"), start))
    peak, start = max(everyone)
    return {"peak_bytes": peak, "start_bytes": start}


def _status(field: str) -> int:
    """Bytes of a line of /proc/self/status, which has kB."""
    matched = re.search(rf"^{field}:\s+([0-9]+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.M)
    assert matched is not None
    return int(matched[1]) * 1024
