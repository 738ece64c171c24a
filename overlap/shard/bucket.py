"""Buckets: gradients that travel together.

A sharded bucket is a run of consecutive parameters of one flat: rank-major ``[world, width]``, row r being what goes to
rank r, so that the reduced row lands in one contiguous stretch of that flat's ``grad``. A replicated bucket is
``[1, width]``: the replicated flats of several units one behind another, reduced on every rank.

    backward    ... B2 .......... B1 .......... B0 ..........|
    reduce              RS2 ......... RS1 .........   a b c d|   the last unit in four: only d stands alone at the end
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from overlap.ops import PackSlot
from overlap.shard.flat import Flat
from overlap.shard.layout import pieces
from overlap.shard.param import ShardedParam
from overlap.shard.unit import Unit

EDGE_PIECES = 4
"""Buckets of a unit at the edge of backward: nothing is left to hide the last one under."""
EDGE_BYTES = 1 << 20
"""Of one of those; smaller ones would cost more calls than they save."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Elements ``[start, start + width)`` of a flat's gradient, at ``column`` of the bucket."""

    flat: Flat
    start: int
    width: int
    column: int

    def gradient(self) -> Tensor:
        """The stretch of the flat's gradient that the bucket is reduced into."""
        assert self.flat.grad is not None
        return self.flat.grad.narrow(0, self.start, self.width)


@dataclass(eq=False, slots=True)
class Bucket:
    """One reduction.

    Attributes:
        name: unit name, or ``replicated``.
        world: rows; 1 for a replicated bucket.
        width: elements of a row.
        dtype: on the wire.
        stretches: where the reduced elements go.
        params: whose gradients it carries.
        slots: where each gradient is packed.
        shared: its view ``[world, width]`` of memory on which it takes turns with other buckets.
        own: memory of its own that gradients accumulate in while they are not reduced; made when first needed.
        accumulating: ``own`` holds gradients that have not been reduced.
        partial: ``[width]``, what has been summed over one copy of the model and not yet over all; made when needed.
        holds_partial: ``partial`` has such sums.
        crossing: what the running reduction sends between copies.
        adds: the running reduction adds to the gradient instead of replacing it.
        reduced: where this rank's row of a sharded bucket goes; made when first needed.
        missing: parameters whose gradient has not arrived in the running backward.
        packed: it has been packed in the running backward.
    """

    name: str
    world: int
    width: int
    dtype: torch.dtype
    stretches: tuple[Stretch, ...]
    params: tuple[ShardedParam, ...]
    slots: tuple[PackSlot, ...]
    shared: Tensor | None = None
    own: Tensor | None = None
    source: Tensor | None = field(default=None)
    accumulating: bool = False
    partial: Tensor | None = None
    holds_partial: bool = False
    crossing: Tensor | None = None
    adds: bool = False
    reduced: Tensor | None = None
    missing: int = 0
    packed: bool = False

    @property
    def replicated(self) -> bool:
        """Whether it is reduced on every rank."""
        return self.stretches[0].flat.key.replicated

    @property
    def numel(self) -> int:
        """Elements of the whole bucket."""
        return self.world * self.width

    @property
    def nbytes(self) -> int:
        """Bytes of the whole bucket."""
        return self.numel * self.dtype.itemsize

    def take_own(self, dtype: torch.dtype) -> Tensor:
        """Its own memory ``[world, width]``; ``dtype`` counts when it is made."""
        if self.own is None:
            self.own = self.take_zeros(self.numel, dtype).view(self.world, self.width)
        return self.own

    def take_partial(self, dtype: torch.dtype) -> Tensor:
        """Memory for its reduced row ``[width]``; ``dtype`` counts when it is made."""
        if self.partial is None:
            self.partial = self.take_zeros(self.width, dtype)
        return self.partial

    def forget_discarded(self) -> None:
        """Drop what has been accumulated for parameters whose gradients were discarded since (``zero_grad``)."""
        if not (self.accumulating or self.holds_partial):
            for param in self.params:
                param.used = param.discard = False
            return
        for param, slot in zip(self.params, self.slots, strict=True):
            if param.discard and self.accumulating and self.own is not None:
                self.own.narrow(1, slot.offset, slot.chunk).zero_()
            if param.discard and self.holds_partial and self.partial is not None:
                self.partial.narrow(0, slot.offset, slot.chunk).zero_()
            if param.discard:
                param.used = False
        keeps = not all(param.discard for param in self.params)
        self.accumulating &= keeps
        self.holds_partial &= keeps
        for param in self.params:
            param.discard = False

    def take_zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        """New memory ``[numel]`` on its device."""
        return torch.zeros(numel, dtype=dtype, device=self.stretches[0].flat.master.device)

    def take_reduced(self) -> Tensor:
        """The stretch of a flat's gradient that a sharded bucket is reduced into."""
        if self.reduced is None:
            self.reduced = self.stretches[0].gradient()
        return self.reduced

    def share(self, memory: Tensor) -> None:
        """Let it take turns with others on memory of ``[world * width]`` elements or more."""
        self.shared = memory.narrow(0, 0, self.numel).view(self.world, self.width)

    def take_shared(self) -> Tensor:
        """Its turn on the shared memory."""
        assert self.shared is not None
        return self.shared


def make_buckets(
    units: Sequence[Unit],
    max_bytes: int,
    dtype: torch.dtype,
    *,
    ranks: int,
    merge_replicated: bool,
    known: Collection[Flat] = (),
) -> list[Bucket]:
    """Cut all trainable parameters into buckets, in the order a backward through a chain completes them.

    Args:
        units: in order of forward.
        max_bytes: of one bucket; a larger parameter is a bucket of its own. Less at the edge of backward: for the unit
            whose gradients come last, and for units around others, whose gradients come at both ends.
        dtype: of gradients on the wire.
        ranks: that reduce them; a replicated bucket is padded to a multiple, so that all send the same.
        merge_replicated: put the replicated parameters of all units into one last bucket.
        known: flats that have buckets already.
    """
    buckets, small = [], []
    last = next((unit for unit in units if unit.leaf and any(flat.key.trainable for flat in unit.flats)), None)
    for unit in reversed(units):
        for flat in reversed([flat for flat in unit.flats if flat.key.trainable and flat not in known]):
            if flat.key.replicated and merge_replicated:
                small.append(flat)
                continue
            most = max_bytes if unit.leaf and unit is not last else min(max_bytes, _edge_bytes(flat, dtype))
            runs = reversed(pieces(flat.layout, range(len(flat.params)), max(most // dtype.itemsize, 1)))
            buckets += [_from_run(unit.name, flat, run, dtype, ranks) for run in runs]
    if small:
        buckets.append(_from_flats("replicated", small, dtype, ranks))
    return buckets


def _edge_bytes(flat: Flat, dtype: torch.dtype) -> int:
    return max(flat.layout.full_numel * dtype.itemsize // EDGE_PIECES, EDGE_BYTES)


def _from_run(name: str, flat: Flat, run: Sequence[int], dtype: torch.dtype, ranks: int) -> Bucket:
    places = flat.layout.params
    start = places[run[0]].offset
    end = places[run[-1] + 1].offset if run[-1] + 1 < len(places) else flat.layout.shard_numel
    params = tuple(flat.params[index] for index in run)
    slots = tuple(_slot(param, -start) for param in params)
    stretch = Stretch(flat, start, end - start, 0)
    width = _padded(end - start, ranks) if flat.key.replicated else end - start
    return Bucket(name, flat.layout.world, width, dtype, (stretch,), params, slots)


def _from_flats(name: str, flats: Sequence[Flat], dtype: torch.dtype, ranks: int) -> Bucket:
    stretches, slots, column = [], [], 0
    for flat in flats:
        width = flat.layout.shard_numel
        stretches.append(Stretch(flat, 0, width, column))
        slots += [_slot(param, column) for param in flat.params]
        column += width
    params = tuple(param for flat in flats for param in flat.params)
    return Bucket(name, 1, _padded(column, ranks), dtype, tuple(stretches), params, tuple(slots))


def _padded(numel: int, ranks: int) -> int:
    return -(-numel // ranks) * ranks


def _slot(param: ShardedParam, shift: int) -> PackSlot:
    return PackSlot(param.layout.offset + shift, param.layout.chunk, param.layout.numel)
