"""Where the tensors of a call lie.

    flat       send ──────────────────────> recv          one tensor
    coalesced  send[p] ───────────────────> recv[p]       P tensors, one call, nothing copied
    staged     send[p] -> stage ──────────> stage -> recv[p]   P tensors copied into one buffer, one call, copied out

With P tensors, one that all ranks have a part of lies as [P, world, s] in memory and as [world, P, s] on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from overlap.bench.collective.calls import CALLS, COALESCED_CALLS
from overlap.bench.collective.case import Case
from overlap.bench.collective.names import REDUCING
from overlap.bench.collective.sizes import WHOLE
from overlap.bench.collective.transports import Transport
from overlap.bench.collective.values import Make, Values, count_wrong, fill, poison


class Place:
    """The tensors of a case on one device.

    Args:
        case: what they are for.
        in_place: let the result lie in the input, or the input in the result, as nccl-tests does.
        device: of the tensors.
    """

    def __init__(self, case: Case, in_place: bool, device: torch.device) -> None:
        self.case, self._device = case, device
        whole = case.count if case.op in WHOLE else case.world * case.count
        sent = case.count if case.op == "all_gather" else whole
        kept = case.count if case.op == "reduce_scatter" else whole
        self.send = torch.empty(sent, dtype=case.wire, device=device)
        self.recv = torch.empty(kept, dtype=case.out, device=device)
        if in_place:
            self._share_memory()
        staged = case.layout == "staged"
        self._stage_in = torch.empty(sent if staged else 0, dtype=case.wire, device=device)
        self._stage_out = torch.empty(kept if staged else 0, dtype=case.out, device=device)

    def _share_memory(self) -> None:
        case = self.case
        if case.op == "all_gather":
            self.send = self._own_part(self.recv)
        elif case.op == "reduce_scatter":
            self.recv = self._own_part(self.send)
        else:
            self.send = self.recv

    def _own_part(self, whole: Tensor) -> Tensor:
        """This rank's [pieces, s] within the memory of all ranks' [pieces, world, s]."""
        return self._by_piece(whole)[:, self.case.rank]

    def _by_piece(self, whole: Tensor) -> Tensor:
        return whole.view(self._pieces, self.case.world, -1)

    @property
    def _pieces(self) -> int:
        return 1 if self.case.layout == "flat" else self.case.pieces

    def fill(self, values: Values) -> None:
        """Write the input, and poison what is not input."""
        if self.send.untyped_storage().data_ptr() != self.recv.untyped_storage().data_ptr():
            poison(self.recv)
        elif self.case.op == "all_gather":
            poison(self.recv)  # but for this rank's part, which is written next
        sent = torch.empty(self.send.numel(), dtype=self.case.wire, device=self._device)
        fill(sent, partial(values.of, self.case.rank))
        self.send.copy_(self._to_memory(sent).view_as(self.send))

    def wrong(self, values: Values) -> int:
        """How many values of the result are not right; of a reduce only its root has one."""
        right = self._right(values)
        if not right:
            return 0
        rows = self._to_wire(self.recv).view(len(right), -1)
        return sum(count_wrong(row, make, rounds=values.rounds) for row, make in zip(rows, right, strict=True))

    def _right(self, values: Values) -> list[Make]:
        """What makes the right values of each rank's part of the result, or of all of it where ranks are summed."""
        case = self.case
        first = case.rank * case.count if case.op in ("reduce_scatter", "all_to_all") else 0
        if case.op == "reduce" and case.rank != case.root:
            return []
        if case.op == "broadcast":
            return [partial(values.of, case.root)]
        if case.op in REDUCING:
            return [partial(_from, values.reduced, first)]
        return [partial(_from, partial(values.of, peer), first) for peer in range(case.world)]

    def call(self, transport: Transport) -> Callable[[], None]:
        """The collective over a transport, as it is timed."""
        plain = partial(CALLS[self.case.op], transport, self.case)
        if self.case.layout == "staged":
            return partial(self._staged, plain)
        if self.case.layout == "coalesced":
            return partial(COALESCED_CALLS[self.case.op], transport, *map(self._tensors, (self.send, self.recv)))
        return partial(plain, self.send.view(-1), self.recv.view(-1))

    def _tensors(self, memory: Tensor) -> list[Tensor]:
        """The tensors of a coalesced call."""
        return [piece.view(-1) for piece in memory.view(self._pieces, -1)]

    def _staged(self, plain: Callable[[Tensor, Tensor], None]) -> None:
        for memory, stage in zip(*self._pairs(self.send, self._stage_in), strict=True):
            stage.copy_(memory)
        plain(self._stage_in, self._stage_out)
        for memory, stage in zip(*self._pairs(self.recv, self._stage_out), strict=True):
            memory.copy_(stage)

    def _pairs(self, memory: Tensor, stage: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Each piece where the user has it, and its place in the buffer on the wire."""
        if not self._spans_ranks(memory):
            return list(memory.view(self._pieces, -1)), list(stage.view(self._pieces, -1))
        on_wire = stage.view(self.case.world, self._pieces, -1).transpose(0, 1)
        return list(self._by_piece(memory)), list(on_wire)

    def _to_wire(self, memory: Tensor) -> Tensor:
        if not self._spans_ranks(memory):
            return memory.reshape(-1)
        return self._by_piece(memory).transpose(0, 1).reshape(-1)

    def _to_memory(self, on_wire: Tensor) -> Tensor:
        if not self._spans_ranks(on_wire):
            return on_wire
        return on_wire.view(self.case.world, self._pieces, -1).transpose(0, 1).reshape(-1)

    def _spans_ranks(self, tensor: Tensor) -> bool:
        return self.case.op not in WHOLE and tensor.numel() == self.case.world * self.case.count


def _from(make: Make, first: int, start: int, count: int, device: torch.device) -> Tensor:
    return make(first + start, count, device)
