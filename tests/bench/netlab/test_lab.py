import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest

from overlap.bench.netlab import lab as labs
from overlap.bench.netlab import segments
from overlap.bench.netlab.lab import open_lab
from overlap.bench.netlab.leftovers import remove_leftovers
from overlap.bench.netlab.namespaces import why_no_namespaces
from overlap.bench.netlab.net import parse_net
from overlap.bench.netlab.processes import run_ranks
from overlap.bench.netlab.traffic import traffic
from overlap.errors import ConfigError, OverlapError

RATE_MBIT = 100
PAYLOAD = 4_000_000

EXCHANGE = f"""
import json, os, socket, sys, time
from overlap.bench.netlab.traffic import traffic
rank, folder = int(os.environ["RANK"]), sys.argv[1]
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
interface = os.environ["GLOO_SOCKET_IFNAME"]
before = traffic(interface)
if rank == 0:
    with socket.create_server(address) as server, server.accept()[0] as peer:
        start, got = time.monotonic(), 0
        while got < {PAYLOAD}:
            got += len(peer.recv(1 << 16))
        seconds = time.monotonic() - start
else:
    for _ in range(200):
        try:
            peer = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    peer.sendall(bytes({PAYLOAD}))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
    seconds = None
moved = traffic(interface) - before
facts = dict(seconds=seconds, sent=moved.sent, received=moved.received, interface=interface)
open(f"{{folder}}/{{rank}}", "w").write(json.dumps(facts))
"""

HOLD = """
import sys, time
from overlap.bench.netlab.lab import open_lab
from overlap.bench.netlab.net import parse_net
from overlap.bench.netlab.processes import run_ranks
with open_lab(parse_net("1gbit"), 2) as lab:
    print(lab.prefixes[0][-1], flush=True)
    run_ranks(lab, ["-c", "import time; time.sleep(600)", sys.argv[1]])
"""

obstacle = why_no_namespaces()
needs_root = pytest.mark.skipif(obstacle is not None, reason=f"no namespaces: {obstacle}")


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def wait_until(true: Callable[[], bool], what: str) -> None:
    for _ in range(400):
        if true():
            return
        time.sleep(0.05)
    pytest.fail(f"not in time: {what}")


@pytest.mark.root
@needs_root
def test_hosts_talk_at_the_rate_and_the_kernel_counts_it(tmp_path):
    with open_lab(parse_net(f"{RATE_MBIT}mbit"), 2) as lab:
        assert (lab.limited, lab.note) == ("links", None)
        run_ranks(lab, ["-c", EXCHANGE, str(tmp_path)], timeout_s=60)
    receiver, sender = (json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1))
    assert PAYLOAD < sender["sent"] < 1.1 * PAYLOAD
    assert PAYLOAD < receiver["received"] < 1.1 * PAYLOAD
    burst = 2**20
    assert receiver["seconds"] > 0.9 * (PAYLOAD - burst) / lab.net.payload_bytes_per_s  # a bucket cannot be faster


@pytest.mark.root
@needs_root
def test_a_cable_takes_as_large_pieces_as_the_kernel_lets_it():
    with open_lab(parse_net("1gbit"), 2) as lab:
        segments_of = [*lab.prefixes[1], sys.executable, "-I", segments.__file__]
        run = partial(subprocess.run, capture_output=True, text=True, check=False)
        smaller = run([*segments_of, "100000", lab.interface])
        absent = run([*segments_of, "100000", "eth7"])
    if lab.segment_bytes == segments.BYTES:
        assert int(smaller.stdout) == 100000
    else:  # before Linux 6.3
        assert lab.segment_bytes == int(smaller.stdout) == 1 << 16
    assert "No such device" in absent.stderr or "no interface" in absent.stderr
    assert absent.returncode


@pytest.mark.root
@needs_root
def test_nothing_is_left_after_an_exception():
    names = []
    with pytest.raises(ZeroDivisionError):
        fail_within(names)
    assert len(names) == 3
    assert not any(name in namespaces() for name in names)


def fail_within(names: list[str]) -> None:
    with open_lab(parse_net("1gbit"), 3) as lab:
        names += [prefix[-1] for prefix in lab.prefixes]
        assert all(name in namespaces() for name in names)
        raise ZeroDivisionError


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_after_a_signal(signum):
    with Held() as (process, name, token):
        process.send_signal(signum)
        process.wait(30)
        assert name not in namespaces()
        assert not running(token)


@pytest.mark.root
@needs_root
def test_what_a_killed_run_left_is_removed_with_its_processes():
    with Held() as (process, name, token):
        process.kill()
        process.wait(30)
        assert name in namespaces()
        remove_leftovers()
        assert name not in namespaces()
        wait_until(lambda: not running(token), "orphans end")


@pytest.mark.root
@needs_root
def test_a_live_run_keeps_its_hosts_when_another_begins():
    with open_lab(parse_net("1gbit"), 1) as first, open_lab(parse_net("1gbit"), 1) as second:
        assert first.prefixes[0][-1] in namespaces()
        assert first.prefixes != second.prefixes


class Held:
    """A process that holds a lab in which ranks sleep, with a token in their command lines."""

    def __enter__(self):
        self.token = secrets.token_hex(8)
        command = [sys.executable, "-c", HOLD, self.token]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        name = self.process.stdout.readline().strip()
        wait_until(lambda: len(running(self.token)) == 3, "ranks start")
        return self.process, name, self.token

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        remove_leftovers()


def running(token: str) -> list[str]:
    """Ids of processes that have the token in their command line."""

    def words(pid: str) -> bytes:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                return file.read()
        except OSError:
            return b""

    return [pid for pid in os.listdir("/proc") if pid.isdigit() and token.encode() in words(pid)]


def test_without_a_limit_ranks_run_on_loopback(tmp_path):
    with open_lab(parse_net("none"), 2) as lab:
        assert (lab.limited, lab.segment_bytes) == ("nothing", None)
        run_ranks(lab, ["-c", EXCHANGE, str(tmp_path)], timeout_s=60)
    facts = json.loads((tmp_path / "0").read_text())
    assert facts["interface"] == "lo"
    assert facts["received"] >= PAYLOAD


def test_without_root_a_limit_is_said_to_hold_for_us_alone(monkeypatch):
    monkeypatch.setattr(labs, "why_no_namespaces", lambda: "not root")
    with open_lab(parse_net("1gbit"), 2) as lab:
        assert (lab.limited, lab.prefixes) == ("communicator", ((), ()))
        assert "not root" in lab.note


def test_a_rank_that_fails_is_named_and_the_others_are_stopped(tmp_path):
    code = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit('out of luck'); time.sleep(600)"
    with open_lab(parse_net("none"), 2) as lab, pytest.raises(OverlapError, match=r"rank 1 .* status 1\nout of luck"):
        run_ranks(lab, ["-c", code])


def test_a_rank_that_is_late_is_named():
    with open_lab(parse_net("none"), 1) as lab, pytest.raises(OverlapError, match="rank 0 was late"):
        run_ranks(lab, ["-c", "import time; time.sleep(600)"], timeout_s=0.2)


def test_an_interface_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="interface must be in this network namespace, but got nothing0"):
        traffic("nothing0")


def test_no_ranks_are_refused():
    with pytest.raises(ConfigError, match="ranks must be positive"), open_lab(parse_net("none"), 0):
        pass
