"""Many messages at once between the ranks of a gloo group, with errors that name the peer."""

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from overlap import _compat
from overlap.errors import DesyncError, message

# Two exchanges may share a group (two engines, one lane each): numbered, their messages never mix.
_numbers: WeakKeyDictionary[ProcessGroup, Iterator[int]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Message:
    """One contiguous tensor to or from group rank `peer`; `index` tells the messages of a pair apart."""

    tensor: Tensor
    peer: int
    index: int = 0


class Exchange:
    """Full-duplex exchanges: every receive is posted before the first send, which fills a link both ways.

    A message is matched by a tag made of the exchange's number, the call's number and name, and the message's
    index and *size*. Ranks that fall out of step therefore never match and time out with an error, where gloo
    would end the process on a size it does not expect.
    """

    def __init__(self, group: ProcessGroup, lane: str) -> None:
        self._group = group
        self._lane = lane
        self._ranks = dist.get_process_group_ranks(group)
        self._number = next(_numbers.setdefault(group, itertools.count()))
        self._calls = itertools.count()

    def run(self, name: str, receives: Sequence[Message], sends: Sequence[Message]) -> int:
        """Move all messages and return the bytes sent; empty ones are left out on both sides.

        Raises:
            DesyncError: a peer did not answer within the group's timeout, or has gone.
        """
        salt = zlib.crc32(f"{self._number}.{next(self._calls)}.{name}".encode())
        receives = [m for m in receives if m.tensor.numel()]
        sends = [m for m in sends if m.tensor.numel()]
        flight = _Flight(salt)
        for received in receives:
            flight.post(self._group.recv, received)
        for sent in sends:
            flight.post(self._group.send, sent)
        flight.land()
        if flight.failures:
            raise self._desync(name, *flight.failures[0])
        return sum(m.tensor.nbytes for m in sends)

    def _desync(self, name: str, peer: int, error: RuntimeError) -> DesyncError:
        me = dist.get_rank()
        subject = f"rank {self._ranks[peer]} in {name} on lane '{self._lane}', as rank {me} sees it,"
        rule = f"answer within {_compat.group_timeout(self._group)}"
        cure = "look at that rank's log; if it is alive, it issued another collective at this point"
        failure = DesyncError(message(subject, rule, str(error), cure))
        failure.__cause__ = error
        return failure


class _Flight:
    """The messages of one call between their post and their arrival."""

    def __init__(self, salt: int) -> None:
        self.failures: list[tuple[int, RuntimeError]] = []
        self._salt = salt
        self._posted: list[tuple[int, Work]] = []

    def post(self, start: Callable[[list[Tensor], int, int], Work], m: Message) -> None:
        tag = zlib.crc32(b"%d.%d" % (m.index, m.tensor.nbytes), self._salt) >> 1  # gloo wants 31 bits
        try:
            self._posted.append((m.peer, start([m.tensor], m.peer, tag)))
        except RuntimeError as error:
            self.failures.append((m.peer, error))

    def land(self) -> None:
        """Wait for all, also after a failure: gloo must not touch a buffer that its owner has back."""
        for peer, work in self._posted:
            try:
                work.wait()
            except RuntimeError as error:
                self.failures.append((peer, error))
