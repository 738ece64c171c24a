"""Which hosts a net gives: one network namespace per rank where that is possible, else loopback."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from overlap.bench.netlab.namespaces import namespaces, why_no_namespaces
from overlap.bench.netlab.net import Net
from overlap.errors import ConfigError, message

MASTER_PORT = 29500
"""Free in a namespace that is a moment old."""


@dataclass(frozen=True, slots=True)
class Lab:
    """Hosts, one per rank, rank 0's first."""

    net: Net
    prefixes: tuple[tuple[str, ...], ...]
    """What a command is put behind to run on a host."""
    interface: str
    """Over which the ranks talk."""
    address: str
    """Host 0's."""
    port: int
    limited: Literal["nothing", "links", "communicator"]
    """Who keeps to the rate: the kernel for everybody, or our communicator for itself alone."""
    note: str | None = None
    """Why this is not what was asked for."""
    segment_bytes: int | None = None
    """The largest piece that TCP hands to an emulated link; None on loopback."""

    @property
    def ranks(self) -> int:
        """How many hosts there are."""
        return len(self.prefixes)

    def command(self, rank: int, argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Return the command that runs ``argv`` on a host as its rank, with more variables."""
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": "0" if self.limited == "links" else str(rank),
            "WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": self.interface,
            **environment,
        }
        return [*self.prefixes[rank], "env", *(f"{name}={value}" for name, value in variables.items()), *argv]


@contextmanager
def open_lab(net: Net, ranks: int) -> Iterator[Lab]:
    """Make the hosts of a net, and remove them on any exit that leaves this process a chance.

    Where namespaces cannot be made, a limited net becomes loopback, ``limited`` says "communicator" and ``note`` why:
    then whoever runs there has to slow down what it can (``overlap.comm.shaped``) and say so.

    Raises:
        ConfigError: fewer than one rank; OverlapError if a command of iproute2 fails.
    """
    if ranks < 1:
        raise ConfigError(message("ranks", "be positive", ranks, "give a larger value"))
    if net.bits_per_s is None:
        yield _loopback(net, ranks, "nothing", None)
        return
    obstacle = why_no_namespaces()
    if obstacle is not None:
        note = f"links cannot be limited ({obstacle}): only this engine's own communicator keeps to {net.name}"
        yield _loopback(net, ranks, "communicator", note)
        return
    with namespaces(net.name, ranks) as made:
        prefixes = tuple(("ip", "netns", "exec", name) for name in made.hosts)
        yield Lab(net, prefixes, made.interface, made.address, MASTER_PORT, "links", None, made.segment_bytes)


def _loopback(net: Net, ranks: int, limited: Literal["nothing", "communicator"], note: str | None) -> Lab:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Lab(net, ((),) * ranks, "lo", "127.0.0.1", port, limited, note)
