"""Interfaces, addresses and RDMA devices."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from overlap.doctor.facts import Network

_ADDRESS_OF = 0x8915  # SIOCGIFADDR
_CLASS = Path("/sys/class")


def look() -> Network:
    """Read what there is."""
    names = [name for _, name in socket.if_nameindex()]
    hostname = socket.gethostname()
    return Network(
        interfaces={name: _address(name) for name in names},
        down=tuple(name for name in names if _state(name) == "down"),
        hostname=hostname,
        hostname_address=_resolve(hostname),
        infiniband=tuple(sorted(path.name for path in _CLASS.glob("infiniband/*"))),
    )


def _address(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked, _ADDRESS_OF, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def _state(interface: str) -> str:
    try:
        return (_CLASS / "net" / interface / "operstate").read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


def _resolve(hostname: str) -> str | None:
    try:
        return socket.gethostbyname(hostname)
    except OSError:
        return None
