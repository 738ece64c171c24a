"""Where the ranks of the job find each other: read from the launcher's variables, asked of its agent."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from overlap import _compat
from overlap.doctor.facts import Rendezvous

PATIENCE_S = 3.0


def look(environment: Mapping[str, str]) -> Rendezvous:
    """Read what there is; where a launcher's agent holds the store, connect to it for a moment."""
    name = environment.get("MASTER_ADDR", "")
    address = _resolve(name) if name else None
    asked = address is not None and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Rendezvous(
        in_use=_in_use(),
        address=address,
        unreachable=_why_not(name, environment.get("MASTER_PORT", "")) if asked else None,
    )


def _in_use() -> str | None:
    """The store behind the prefixes that groups put before their keys."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    store: Any = _compat.default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    kind = type(store).__name__
    if hasattr(store, "host"):
        return f"{kind} at {store.host}:{store.port}"
    return f"{kind} in {store.path}" if hasattr(store, "path") else kind


def _resolve(name: str) -> str | None:
    """Of any family: unlike gloo's addresses, the store's may be IPv6."""
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return None


def _why_not(host: str, port: str) -> str | None:
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return None
