"""Many messages at once between the ranks of a gloo group, with errors that name the peer.

To ranks of the same host they go through memory (`overlap.comm.same_host`), to all others through gloo.
"""

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from overlap import _compat
from overlap.comm.calls import CallLog
from overlap.comm.desync import unanswered
from overlap.comm.message import Message, Tagged
from overlap.comm.same_host import EndedError, SameHost, find_same_host
from overlap.errors import DesyncError

_AT_ONCE = timedelta(milliseconds=1)

# Two exchanges may share a group (two engines, one lane each): numbered, their messages never mix.
_numbers: WeakKeyDictionary[ProcessGroup, Iterator[int]] = WeakKeyDictionary()


def open_log(group: ProcessGroup, lane: str) -> CallLog:
    """The log of a new communicator over `group`; all ranks open theirs in the same order."""
    return CallLog(group.group_name, next(_numbers.setdefault(group, itertools.count())), lane)


class Exchange:
    """Full-duplex exchanges: every receive is posted before the first send, which fills a link both ways.

    A message is matched by a tag made of the exchange's number, the call's number, name, size and label, and the
    message's index and *size*. Ranks that fall out of step therefore never match and time out with an error, where
    gloo would end the process on a size it does not expect, and would give a unit the rows of another of its size.
    """

    def __init__(self, group: ProcessGroup, lane: str) -> None:
        self._group = group
        self._ranks = dist.get_process_group_ranks(group)
        self._same_host = find_same_host(group)
        self.log = open_log(group, lane)
        self._failure = ""
        timeout = _compat.group_timeout(group)
        self._patience_s = math.inf if timeout is None else timeout.total_seconds()

    @property
    def nbytes(self) -> int:
        """Memory that ranks of the same host share with this one to send to it."""
        return self._same_host.nbytes

    @contextmanager
    def call(self, op: str, nbytes: int) -> Iterator["Transfer"]:
        """One collective: the moves inside belong to it.

        Args:
            op: collective and kind.
            nbytes: of its whole tensor, the same on all ranks.

        Raises:
            DesyncError: a peer did not answer within the group's timeout, or has gone; in this call or an earlier one.
        """
        if self._failure:  # gloo has closed the connections: nobody could answer this one
            raise DesyncError(self._failure)
        with self.log.call(op, nbytes, self._interrupt) as call:
            name = f"{self.log.number}.{call.number}.{op}.{nbytes}.{call.label.matched}"
            yield Transfer(self._group, self._same_host, name, self._patience_s, self._wait_for, self._fail)

    def _wait_for(self, peer: int) -> None:
        self.log.waits_for = self._ranks[peer]

    def _fail(self, failures: Mapping[int, RuntimeError]) -> NoReturn:
        peers = sorted(self._ranks[peer] for peer in failures)
        cause = next(iter(failures.values()))
        failure = unanswered(self.log, peers, None if isinstance(cause, EndedError) else self._patience_s, cause)
        self._failure = str(failure)
        self._same_host.give_up()
        raise failure from cause

    def _interrupt(self, after_s: float) -> None:
        """Gloo closes all connections of a group when one of its messages times out: wait for one that never comes."""
        self._patience_s = after_s
        self._same_host.interrupt()
        with suppress(RuntimeError):
            self._group.recv([torch.empty(1)], (self._group.rank() + 1) % len(self._ranks), 0).wait(_AT_ONCE)


class Transfer:
    """The messages of one call.

    Args:
        group: moves them.
        same_host: moves those to and from its ranks instead.
        name: the same on all ranks, and for no other call.
        patience_s: how long a rank of this host may take; gloo knows that of the others.
        wait_for: is told the group rank whose message is waited for.
        fail: raises what is to be said about messages that did not arrive, by group rank of the peer.
    """

    def __init__(
        self,
        group: ProcessGroup,
        same_host: SameHost,
        name: str,
        patience_s: float,
        wait_for: Callable[[int], None],
        fail: Callable[[Mapping[int, RuntimeError]], NoReturn],
    ) -> None:
        self.sent = 0
        self._group, self._same_host, self._patience_s = group, same_host, patience_s
        self._wait_for, self._fail = wait_for, fail
        self._salt = zlib.crc32(name.encode())
        self._moves = itertools.count()
        self._posted: list[tuple[int, Work]] = []
        self._failures: dict[int, RuntimeError] = {}

    def move(self, receives: Sequence[Message], sends: Sequence[Message]) -> None:
        """Move all messages; empty ones are left out on both sides."""
        number = next(self._moves)
        near_in = self._post_far(self._group.recv, self._tagged(receives, number))
        near_out = self._post_far(self._group.send, self._tagged(sends, number))
        if near_in or near_out:
            self._move_near(near_in, near_out)
        self._land()
        if self._failures:
            self._fail(self._failures)
        self.sent += sum(message.tensor.nbytes for message in sends)

    def _tagged(self, messages: Sequence[Message], move: int) -> list[Tagged]:
        return [Tagged(message, self._tag(message, move)) for message in messages if message.tensor.nbytes]

    def _tag(self, message: Message, move: int) -> int:
        text = b"%d.%d.%d" % (move, message.index, message.tensor.nbytes)
        return zlib.crc32(text, self._salt) >> 1 or 1  # 31 bits; 0 is never sent

    def _post_far(self, start: Callable[[list[Tensor], int, int], Work], messages: list[Tagged]) -> list[Tagged]:
        """Let gloo start with the messages that are its; the others."""
        near = []
        for each in messages:
            if each.message.peer in self._same_host.ranks:
                near.append(each)
                continue
            try:
                self._posted.append((each.message.peer, start([each.message.tensor], each.message.peer, each.tag)))
            except RuntimeError as error:
                self._failures.setdefault(each.message.peer, error)
        return near

    def _move_near(self, receives: list[Tagged], sends: list[Tagged]) -> None:
        self._wait_for(min(each.message.peer for each in (receives or sends)))
        for peer, error in self._same_host.exchange(receives, sends, self._patience_s).items():
            self._failures.setdefault(peer, error)

    def _land(self) -> None:
        """Wait for all, also after a failure: gloo must not touch a buffer that its owner has back."""
        for peer, work in self._posted:
            if not self._failures:
                self._wait_for(peer)
            try:
                work.wait()
            except RuntimeError as error:
                self._failures.setdefault(peer, error)
        self._posted.clear()
