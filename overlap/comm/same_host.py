"""Messages between ranks of one host go through memory that they share, not through gloo's sockets.

    rank 0 | 1      one host: a copy into a ring of 0.5 MiB in cache, a copy out of it
      |   |  |
    rank 2 | 3      another host: gloo

Who shares a host is found out when a communicator is opened. Containers and network namespaces count as hosts: what
is between them is somebody's network, and may be there to be measured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from weakref import finalize
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from overlap.config import shared_memory_mode_from_env
from overlap.errors import ConfigError, message

if TYPE_CHECKING:
    from overlap import _shared

try:
    from overlap import _shared as extension
except ImportError:  # not built, or not Linux
    extension = None  # type: ignore[assignment]

RING_BYTES = 512 << 10
"""Room for messages from one rank to another: fits the cache of a core, beside the slices that are copied."""

MODES = ("auto", "on", "off")

_IDENTITY = ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid", "/proc/self/ns/net")


class EndedError(RuntimeError):
    """A peer will not answer, however long one waits."""


class Carried(Protocol):
    """A message as `overlap.comm.exchange` has it."""

    @property
    def tensor(self) -> Tensor:
        """Contiguous."""

    @property
    def peer(self) -> int:
        """Group rank."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A message and its tag; it arrives only where the same tag and size are expected next."""

    message: Carried
    tag: int

    @property
    def row(self) -> tuple[int, int, int, int]:
        """For the extension: peer, tag, address, bytes."""
        tensor = self.message.tensor
        return self.message.peer, self.tag, tensor.data_ptr(), tensor.nbytes


class SameHost:
    """The ranks of a group that this one shares memory with.

    Attributes:
        ranks: their group ranks.
    """

    def __init__(self, port: _shared.Port | None, ranks: frozenset[int]) -> None:
        self.ranks = ranks
        self._port = port if ranks else None
        if self._port is not None:  # also where the group goes without a word, as at the end of a process
            finalize(self, self._port.close)

    @property
    def nbytes(self) -> int:
        """Memory that this rank receives in."""
        return 0 if self._port is None else self._port.nbytes

    def exchange(
        self, receives: Sequence[Tagged], sends: Sequence[Tagged], patience_s: float
    ) -> dict[int, RuntimeError]:
        """Move all messages.

        Args:
            receives: from `ranks`, in the order in which each sends them.
            sends: to `ranks`.
            patience_s: how long a peer may let none advance.

        Returns:
            What is wrong, by group rank of the peers that something is wrong with.
        """
        assert self._port is not None
        words = self._port.exchange([each.row for each in receives], [each.row for each in sends], patience_s)
        return {peer: _error(word) for peer, word in enumerate(words) if word}

    def interrupt(self) -> None:
        """End the running exchange, from any thread."""
        if self._port is not None:
            self._port.interrupt()

    def close(self) -> None:
        """Tell the others that nothing more comes: those who wait for it learn so at once."""
        if self._port is not None:
            self._port.close()


def _error(word: str) -> RuntimeError:
    return EndedError(word) if word in extension.FINAL else RuntimeError(word)


def find_same_host(group: ProcessGroup) -> SameHost:
    """Find out which ranks of a gloo group can share memory, and connect. A collective.

    ``OVERLAP_SHARED_MEMORY``: ``auto`` uses it where it works, ``off`` nowhere, ``on`` insists on it for every rank.

    Raises:
        ConfigError: ``on``, and a rank is on another host or cannot share memory; or an unknown word.
    """
    mode = shared_memory_mode_from_env()
    if mode not in MODES:
        raise ConfigError(message("OVERLAP_SHARED_MEMORY", f"be one of {', '.join(MODES)}", mode, "choose one of them"))
    if group.size() == 1:
        return SameHost(None, frozenset())
    port = None if mode == "off" else _open_port(group)
    found = SameHost(port, _connect(group, port))
    missing = sorted(set(range(group.size())) - found.ranks - {group.rank()})
    if mode == "on" and missing:
        ranks = [dist.get_process_group_ranks(group)[peer] for peer in missing]
        rule, cure = "share memory with all ranks", "set OVERLAP_SHARED_MEMORY=auto, or run on one host"
        got = f"none with ranks {ranks}" + ("" if extension else "; overlap._shared was not built")
        raise ConfigError(message("this rank", rule, got, cure))
    return found


def _open_port(group: ProcessGroup) -> _shared.Port | None:
    if extension is None:
        return None
    try:
        return extension.Port(group.size(), group.rank(), RING_BYTES)
    except (RuntimeError, OSError):  # a system without memfd, or no memory left for it
        return None


def _connect(group: ProcessGroup, port: _shared.Port | None) -> frozenset[int]:
    told = _all_rows(group, [int(port is not None), _host(), *(port.address if port is not None else (0, 0, 0))])
    mine = told[group.rank()]
    reached = [
        int(port is not None and peer != group.rank() and theirs[:2] == mine[:2] and port.connect(peer, *theirs[2:]))
        for peer, theirs in enumerate(told)
    ]
    # Both sides must have reached the other: one that went by memory would wait for one that goes by gloo.
    mutual = _all_rows(group, reached, torch.uint8)
    return frozenset(peer for peer in range(group.size()) if reached[peer] and mutual[peer][group.rank()])


def _all_rows(group: ProcessGroup, row: Sequence[int], dtype: torch.dtype = torch.int64) -> list[list[int]]:
    mine = torch.tensor(row, dtype=dtype)
    rows = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(rows, mine, group=group)
    return [each.tolist() for each in rows]


def _host() -> int:
    """A number that processes have in common if one can reach the other's memory and no network lies between."""
    return crc32(" ".join(_read_identity(Path(path)) for path in _IDENTITY).encode())


def _read_identity(path: Path) -> str:
    try:
        return os.readlink(path) if path.is_symlink() else path.read_text()
    except OSError:
        return f"unknown {os.getpid()}"
