"""What is read from this machine is what other ways to ask say."""

import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from overlap.doctor.facts import Rendezvous
from overlap.doctor.probes import host, io_uring, look, rendezvous
from overlap.doctor.probes.gpus import parse_topology

TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\tPIX\t0-51\t0\tN/A\n"
    "GPU1\tNV18\t X \tPHB\tNODE\t0-51\t0\tN/A\n"
    "GPU2\tSYS\tPHB\t X \tSYS\t52-103\t1\tN/A\n"
    "NIC0\tPIX\tNODE\tSYS\t X \t\t\t\n\nLegend:\n\n  X    = Self\n"
)


def test_the_matrix_of_links_is_read_without_nics():
    joined = {(0, 1): "NV18", (0, 2): "SYS", (1, 2): "PHB"}
    assert parse_topology(TOPOLOGY) == joined | {(b, a): word for (a, b), word in joined.items()}
    assert parse_topology("") == {}


def test_quotas():
    assert host.parse_quota("max 100000") is None
    assert host.parse_quota("150000 100000") == 1.5


def test_facts_of_this_machine():
    facts = look(ranks=3)
    assert facts.cpu.ranks == 3
    assert facts.cpu.allowed == len(os.sched_getaffinity(0))
    assert facts.cpu.threads == torch.get_num_threads()
    assert facts.software.python == sys.version_info[:3]
    assert facts.network.interfaces["lo"] == "127.0.0.1"
    assert facts.environment["PATH"] == os.environ["PATH"]
    assert len(facts.gpus.seen) == torch.cuda.device_count()
    with open("/proc/self/limits") as limits:
        locked = next(line for line in limits if line.startswith("Max locked memory")).split()[3]
    assert str(facts.memory.locked_limit or "unlimited") == locked


def test_the_agents_store_is_asked_for_an_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        agent = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
        found = rendezvous.look(agent)
        assert (found.in_use, found.unreachable) == (None, None)
        assert found.address in ("127.0.0.1", "::1")
    assert "refused" in rendezvous.look(agent).unreachable.lower()
    assert rendezvous.look(agent | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).unreachable is None
    assert rendezvous.look(agent | {"MASTER_PORT": "none"}).unreachable is not None
    assert rendezvous.look({"MASTER_ADDR": "::1"}).address == "::1"
    assert rendezvous.look({"MASTER_ADDR": "no-such-host.invalid"}) == Rendezvous()


def _stores():
    return rendezvous.look({}).in_use


def test_a_store_that_is_in_use_is_told(ranks):
    assert all(re.fullmatch(r"(TCPStore at \S+:\d+|FileStore in \S+|HashStore)", told) for told in ranks(2, _stores))


def test_the_affinity_mask_is_seen():
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{one}}}); from overlap.doctor.probes import host"
    code += "; print(host.look_at_cpu(1).allowed)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "1"


def test_a_ring_is_asked_for_and_none_is_left():
    before = len(os.listdir("/proc/self/fd"))
    answer = io_uring.why_not()
    assert len(os.listdir("/proc/self/fd")) == before
    assert answer in (None, os.strerror(errno.EPERM), os.strerror(errno.ENOSYS))
    switch = Path("/proc/sys/kernel/io_uring_disabled")
    if switch.exists() and switch.read_text().strip() == "2":
        assert answer is not None


def test_a_forbidden_ring_is_told(monkeypatch):
    class Forbidding:
        @staticmethod
        def syscall(*arguments):
            return -1

    monkeypatch.setattr(io_uring.ctypes, "CDLL", lambda *_, **__: Forbidding)
    monkeypatch.setattr(io_uring.ctypes, "get_errno", lambda: errno.EPERM)
    assert io_uring.why_not() == "Operation not permitted"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_nothing_of_cuda_is_touched(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA was initialised"))
    assert look().gpus.seen == ()
