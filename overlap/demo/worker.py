"""One rank's process: join the group, do the job, leave cleanly."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from overlap.demo.launch import EXPECTED
from overlap.demo.settings import TrainSettings
from overlap.demo.train import train
from overlap.errors import OverlapError


def run(job: Callable[[torch.device], int | None], show: Callable[[Exception], None] | None = None) -> NoReturn:
    """Do the job as this process's rank, then end the process.

    Args:
        job: gets the rank's device; may return the exit status, else it is 0.
        show: prints a failure; None where ``launch`` does so, from the reports that failing ranks leave.
    """
    try:
        status = job(join())
    except Exception as error:
        get_error_handler().record_exception(error)
        if show is not None:
            show(error)
        _leave(EXPECTED if isinstance(error, OverlapError) else 1)
    except KeyboardInterrupt:  # whoever sent it knows
        _leave(128 + signal.SIGINT)
    dist.barrier()
    dist.destroy_process_group()
    _leave(status or 0)


def join() -> torch.device:
    """Make the default process group, over NCCL where there are GPUs, and return this rank's device."""
    if torch.cuda.is_available():
        device = torch.device("cuda", dist.get_node_local_rank(fallback_rank=0))
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
        return device
    dist.init_process_group("gloo")
    return torch.device("cpu")


def _leave(code: int) -> NoReturn:
    """End the process without the interpreter's teardown, in which gloo's threads now and then abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run(partial(train, TrainSettings.from_json(sys.argv[1])))
