import subprocess
import sys
import threading

import pytest
import torch

from overlap import ops
from overlap.errors import ConfigError
from overlap.ops import native

FORK = """
import os, threading, torch
from overlap import ops
torch.set_num_threads(1)  # torch's own OpenMP threads do not survive a fork
ops.set_num_threads(2)
rows, out = [torch.ones(1 << 20)] * 2, torch.empty(1 << 20)
ops.reduce_sum(rows, out)
stop = threading.Event()

def keep_the_pool_busy():
    mine = torch.empty(1 << 20)
    while not stop.is_set():
        ops.reduce_sum(rows, mine)

busy = threading.Thread(target=keep_the_pool_busy)
busy.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        ops.reduce_sum(rows, out, accumulate=True)
        os._exit(0 if bool((out == 4).all()) else 1)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
busy.join()
"""


def test_follows_torch_until_told():
    assert ops.get_num_threads() == torch.get_num_threads()
    ops.set_num_threads(3)
    assert ops.get_num_threads() == 3
    ops.set_num_threads(None)
    assert ops.get_num_threads() == torch.get_num_threads()


def test_refuses_no_threads():
    with pytest.raises(ConfigError, match="num_threads must be at least 1"):
        ops.set_num_threads(0)


def test_the_pool_survives_forks_while_it_works_and_joins_at_exit():
    """A child has none of the pool's threads: one that waited for them would hang, as would an exit that left them."""
    finished = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert finished.stdout == "child 0\n" * 5, finished.stderr
    assert finished.returncode == 0, finished.stderr


def test_callers_share_the_pool_without_mixing():
    """Lanes call ops from their own threads at the same time; each must get its own sum, many times over."""
    size, wrong = 300_001, []

    def reduce_often(value):
        rows, out = [torch.full((size,), value)] * 3, torch.empty(size)
        for _ in range(20):
            out.fill_(float("nan"))
            native.reduce_sum(rows, out, 1.0, False, None)
            if not bool((out == 3 * value).all()):
                wrong.append(value)

    ops.set_num_threads(3)
    callers = [threading.Thread(target=reduce_often, args=(float(value),)) for value in range(1, 5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    ops.set_num_threads(None)
    assert wrong == []


def test_workers_round_as_their_caller_does():
    """Flush-to-zero is a state of each thread: all of a result follows the thread that asked for it."""
    rows, out = [torch.full((1 << 20,), 1e-40)] * 2, torch.empty(1 << 20)
    ops.set_num_threads(2)
    try:
        for flush in (True, False, True):
            if not torch.set_flush_denormal(flush):
                pytest.skip("this processor does not flush")
            for _ in range(5):
                native.reduce_sum(rows, out, 1.0, False, None)
                assert len(out.unique()) == 1
    finally:
        torch.set_flush_denormal(False)
        ops.set_num_threads(None)
