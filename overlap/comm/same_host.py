"""Messages between ranks of one host go through memory that they share, not through gloo's sockets.

    rank 0 | 1      one host: a copy into a ring of 0.5 MiB in cache, a copy out of it
      |   |  |
    rank 2 | 3      another host: gloo

Who shares a host is found out when a communicator is opened. Containers and network namespaces count as hosts: what
is between them is somebody's network, and may be there to be measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import finalize
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from overlap.comm.message import Tagged
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


class SameHost:
    """The ranks of a group that this one shares memory with.

    Attributes:
        ranks: their group ranks.
    """

    def __init__(self, port: _shared.Port | None, places: Mapping[int, int]) -> None:
        """Hold the port.

        Args:
            port: that has been connected; None where there is nobody.
            places: in it, of the ranks that it reaches, by group rank.
        """
        self.ranks = frozenset(places)
        self._places, self._port = places, port if places else None
        self._rank_at = {place: rank for rank, place in places.items()}
        if self._port is not None:  # also where the group goes without a word, as at the end of a process
            finalize(self, self._port.close, False)

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
            patience_s: how long a peer may let none of its own advance.

        Returns:
            What is wrong, by group rank of the peers that something is wrong with.
        """
        assert self._port is not None
        words = self._port.exchange(self._rows(receives), self._rows(sends), patience_s)
        return {self._rank_at[place]: _error(word) for place, word in enumerate(words) if word}

    def _rows(self, messages: Sequence[Tagged]) -> list[tuple[int, int, int, int]]:
        """For the extension: place, tag, address, bytes."""
        return [
            (self._places[each.message.peer], each.tag, each.message.tensor.data_ptr(), each.message.tensor.nbytes)
            for each in messages
        ]

    def interrupt(self) -> None:
        """End the running exchange, from any thread."""
        if self._port is not None:
            self._port.interrupt()

    def give_up(self) -> None:
        """A call has failed, and nothing more comes: those who wait for it learn so at once."""
        if self._port is not None:
            self._port.close(True)


def _error(word: str) -> RuntimeError:
    return EndedError(word) if word in extension.FINAL else RuntimeError(word)


def find_same_host(group: ProcessGroup) -> SameHost:
    """Find out which ranks of a gloo group can share memory, and connect. A collective.

    ``OVERLAP_SHARED_MEMORY``: ``auto`` uses it where it works, ``off`` nowhere, ``on`` insists on it for every rank.

    Raises:
        ConfigError: ``on``, and some two ranks are on two hosts or cannot share memory; or an unknown word.
    """
    mode = shared_memory_mode_from_env()
    if mode not in MODES:
        raise ConfigError(message("OVERLAP_SHARED_MEMORY", f"be one of {', '.join(MODES)}", mode, "choose one of them"))
    if group.size() == 1:
        return SameHost(None, {})
    neighbours = _neighbours(group, willing=mode != "off" and extension is not None)
    port = _open_port(neighbours, group.rank()) if len(neighbours) > 1 else None
    pairs = _connect(group, port, neighbours)
    if mode == "on":
        _insist(group, pairs)
    places = {rank: place for place, rank in enumerate(neighbours) if (group.rank(), rank) in pairs}
    return SameHost(port, places)


def _neighbours(group: ProcessGroup, *, willing: bool) -> list[int]:
    """Group ranks of this rank's host that are willing, itself among them if it is."""
    told = _all_rows(group, [int(willing), _host()])
    return [rank for rank, theirs in enumerate(told) if willing and theirs == told[group.rank()]]


def _open_port(neighbours: Sequence[int], rank: int) -> _shared.Port | None:
    try:
        return extension.Port(len(neighbours), neighbours.index(rank), RING_BYTES)
    except (RuntimeError, OSError):  # a system without memfd, or no memory left for it
        return None


def _connect(group: ProcessGroup, port: _shared.Port | None, neighbours: Sequence[int]) -> set[tuple[int, int]]:
    """Pairs of group ranks that have reached each other, all of the group; the same on all ranks."""
    told = _all_rows(group, [int(port is not None), *(port.address if port is not None else (0, 0, 0))])
    reached = [0] * group.size()
    for place, rank in enumerate(neighbours):
        there, *address = told[rank]
        if port is not None and there and rank != group.rank():
            reached[rank] = int(port.connect(place, *address))
    # Both sides must have reached the other: one that went by memory would wait for one that goes by gloo.
    everyone = _all_rows(group, reached, torch.uint8)
    ranks = range(group.size())
    return {(one, other) for one in ranks for other in ranks if everyone[one][other] and everyone[other][one]}


def _insist(group: ProcessGroup, pairs: set[tuple[int, int]]) -> None:
    ranks = dist.get_process_group_ranks(group)
    apart = [(ranks[one], ranks[two]) for two in range(group.size()) for one in range(two) if (one, two) not in pairs]
    if apart:
        got = f"ranks {apart[0][0]} and {apart[0][1]} that share none"
        got += "" if extension else "; overlap._shared was not built"
        cure = "set OVERLAP_SHARED_MEMORY=auto, or run on one host"
        raise ConfigError(message("every two ranks", "share memory with OVERLAP_SHARED_MEMORY=on", got, cure))


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
