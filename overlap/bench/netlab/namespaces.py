"""Network namespaces as hosts: a cable from each to a switch, a token bucket where a host sends.

    host 0: eth0 (tbf) ═══ h0 ┐
    host 1: eth0 (tbf) ═══ h1 ┼ bridge        a namespace of its own: nothing here touches this machine's network
    host 2: eth0 (tbf) ═══ h2 ┘

Only egress is limited: a limit at both ends, or a burst below 256 kB, halves what flows in two directions at once.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from shutil import which
from types import FrameType
from typing import NoReturn

from overlap.bench.netlab import segments
from overlap.bench.netlab.leftovers import name_of_run, namespaces_of, remove, remove_leftovers
from overlap.errors import ConfigError, OverlapError, message

TOOLS = ("ip", "tc")
INTERFACE = "eth0"
BURST, LATENCY = "1mb", "100ms"
MAX_HOSTS = 250


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Namespaces of one run."""

    hosts: tuple[str, ...]
    interface: str
    """In each of them."""
    address: str
    """Of the first."""
    segment_bytes: int
    """The largest piece that TCP hands to a cable."""


def why_no_namespaces() -> str | None:
    """Say why this process cannot make network namespaces; None where it can."""
    missing = [tool for tool in TOOLS if which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 not installed"
    if os.geteuid() != 0:
        return "not root"
    probe = name_of_run()
    try:
        _ip("netns", "add", f"{probe}-probe")  # root in a container may still not
    except OverlapError as error:
        return str(error)
    remove(namespaces_of(probe))
    return None


@contextmanager
def namespaces(rate: str, hosts: int) -> Iterator[Namespaces]:
    """Build ``hosts`` namespaces whose links send at ``rate``; remove them, and what runs in them, on any exit.

    SIGTERM ends the block as Ctrl-C does. What a killed run has left behind is removed before the next is built.

    Raises:
        ConfigError: too many hosts for one subnet.
        OverlapError: a command failed, with what it said.
    """
    if hosts > MAX_HOSTS:
        raise ConfigError(message("ranks", f"be at most {MAX_HOSTS}", hosts, "emulate fewer hosts"))
    remove_leftovers()
    run = name_of_run()
    with _sigterm_raises():
        try:
            yield _build(run, rate, hosts)
        finally:
            remove(namespaces_of(run))


def _build(run: str, rate: str, hosts: int) -> Namespaces:
    switch, names = f"{run}-switch", tuple(f"{run}-{number}" for number in range(hosts))
    for name in (switch, *names):
        _ip("netns", "add", name)
    _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
    _ip("-n", switch, "link", "set", "bridge", "up")
    for number, name in enumerate(names):
        port = f"h{number}"
        _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{_address(number)}/24", "dev", INTERFACE)
        _ip("-n", name, "link", "set", INTERFACE, "up")
        limit = ("tbf", "rate", rate, "burst", BURST, "latency", LATENCY)
        _run("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", *limit)
    pieces = [_segments(switch, "bridge", *(f"h{number}" for number in range(hosts)))]
    pieces += [_segments(name, INTERFACE) for name in names]
    return Namespaces(names, INTERFACE, _address(0), min(pieces))


def _segments(name: str, *interfaces: str) -> int:
    """Enlarge what the interfaces of a namespace take at once; return it, in bytes."""
    inside = ("ip", "netns", "exec", name, sys.executable, "-I", segments.__file__)
    return int(_run(*inside, str(segments.BYTES), *interfaces))


def _address(number: int) -> str:
    return f"10.83.0.{number + 1}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OverlapError(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM unwind the stack; only the main thread may ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(signum: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
