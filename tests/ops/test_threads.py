import subprocess
import sys

import pytest
import torch

from overlap import ops
from overlap.errors import ConfigError

FORK = """
import os, torch
from overlap import ops
torch.set_num_threads(1)  # torch's own OpenMP threads do not survive a fork
ops.set_num_threads(2)
rows, out = [torch.ones(1 << 20)] * 2, torch.empty(1 << 20)
ops.reduce_sum(rows, out)
child = os.fork()
if child == 0:
    ops.reduce_sum(rows, out, accumulate=True)
    os._exit(0 if bool((out == 4).all()) else 1)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
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


def test_survive_a_fork_and_the_exit():
    """A pool would hang in the child, or at exit: its threads do not cross a fork."""
    finished = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert finished.stdout == "child 0\n", finished.stderr
