"""One world size and shape of ``overlap bench host``, in a process of its own."""

import json
import sys
from pathlib import Path

import torch

from overlap import _compat
from overlap.bench.host.idle import idle_transport
from overlap.bench.host.measure import measure
from overlap.bench.host.results import OURS, OURS_INLINE, PEER, PLAIN
from overlap.bench.host.settings import HostTask, Shape
from overlap.bench.host.subjects import fsdp2, ours, plain
from overlap.comm.groups import transport


def run(task: HostTask) -> None:
    """Measure as rank 0 of a world whose other ranks do not exist."""
    torch.set_num_threads(1)
    _compat.init_fake_process_group(task.world)
    shape = Shape(task.units, task.params)
    with transport(idle_transport):
        subjects = {
            PLAIN: plain(shape),
            OURS: ours(shape),
            OURS_INLINE: ours(shape, lanes="inline"),
            PEER: fsdp2(shape, task.world),
        }
        found = measure(subjects, task.rounds)
    Path(task.out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    run(HostTask.from_json(sys.argv[1]))
