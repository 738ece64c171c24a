"""A unit: the parameters that are gathered together, and where their full form lives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn

from overlap.config import ShardOptions
from overlap.shard.faces import Faces
from overlap.shard.flat import Flat
from overlap.shard.param import EmptyParam, ShardedParam, as_shaped
from overlap.shard.piece import Piece
from overlap.shard.slot import Slot, aligned_bytes


@dataclass(eq=False, slots=True)
class Unit:
    """One call of ``fully_shard``.

    Attributes:
        name: fully qualified module name below the outermost sharded module; "" for that one.
        options: as given to ``fully_shard``.
        flats: parameters by storage; usually one sharded and one replicated flat.
        leaf: no other unit lies inside it, and none uses its parameters.
        empties: parameters of no elements that compute uses in another dtype; they are not sharded.
        borrowed: parameters of other units that modules of this one hold, too.
        lenders: the units they belong to; the engine fills it in.
        reshard_after_forward: full parameters leave after forward; at first as in ``options``.
        reshard_after_backward: they leave after backward.
        held: they were brought by hand and stay until they are let go by hand.
        rows: of the mesh, within which it is gathered: what comes from other rows is kept.
        own_slot: it has been held before, and keeps the memory for it.
        pieces: what one gather moves, once ``place`` has been called.
        params: all parameters of the unit.
    """

    name: str
    options: ShardOptions
    flats: tuple[Flat, ...]
    leaf: bool
    borrowed: tuple[ShardedParam, ...] = ()
    empties: tuple[EmptyParam, ...] = ()
    lenders: tuple[Unit, ...] = ()
    reshard_after_forward: bool = True
    reshard_after_backward: bool = True
    held: bool = False
    own_slot: bool = False
    rows: int = 1
    pieces: tuple[Piece, ...] = ()
    slot: Slot | None = None
    params: tuple[ShardedParam, ...] = field(init=False)
    _faces: Faces = field(init=False)

    def __post_init__(self) -> None:
        """Cache the parameter list: showing a face walks it four times a step."""
        self.reshard_after_forward = self.options.reshard_after_forward
        self.params = tuple(param for flat in self.flats for param in flat.params)
        self._faces = Faces(self.params)

    @property
    def sharded_flats(self) -> Iterator[Flat]:
        """The flats that a gather moves."""
        return (flat for flat in self.flats if not flat.key.replicated)

    @property
    def resident(self) -> bool:
        """Whether full parameters stay from step to step."""
        return self.held or not self.reshard_after_backward or self.options.resident

    @property
    def shares_slot(self) -> bool:
        """Whether others may use its slot between its forward and its backward."""
        return self.leaf and self.reshard_after_forward and not self.own_slot and not self.resident

    @property
    def frozen(self) -> bool:
        """Whether some of what its slot holds is not trained."""
        return any(not param.public.requires_grad for flat in self.sharded_flats for param in flat.params)

    @property
    def slot_bytes(self) -> int:
        """Room its full parameters take in a slot."""
        return sum(_full_bytes(flat) for flat in self.sharded_flats)

    @property
    def gather_bytes(self) -> int:
        """Bytes this rank sends for one gather, of chunks that have not changed since the last."""
        return sum(_chunk_bytes(flat) * (flat.layout.world - self.rows) for flat in self.sharded_flats)

    @property
    def refresh_bytes(self) -> int:
        """Bytes this rank sends to other rows of the mesh when all that is trained has changed."""
        return sum(_chunk_bytes(flat) * (self.rows - 1) for flat in self.sharded_flats if flat.key.trainable)

    def place(self, slot: Slot | None) -> None:
        """Give the unit its memory: full parameters become views of the slot, replicated ones of their flat."""
        self.slot = slot
        pieces: list[Piece] = []
        start = 0
        for flat in self.flats:
            if flat.key.replicated:
                for param in flat.params:
                    bind_working(param, flat.shard.narrow(0, param.layout.offset, param.layout.numel).data)
                continue
            assert slot is not None
            full = slot.view(start, flat.layout.full_numel, flat.key.compute_dtype)
            pieces += [_piece(flat, param, full) for param in flat.params]
            start += _full_bytes(flat)
        self.pieces = tuple(pieces)
        self._faces = Faces(self.params)

    def check_faces(self) -> None:
        """Take over changes of ``requires_grad``, and refuse parameters that were put in place of ours.

        Raises:
            StateError: a parameter was replaced.
        """
        if not self._faces.match():
            self._faces = Faces(self.params)
        if not self._faces.undisturbed():
            for param in self.params:
                param.check_public(held=self.held)

    def changed(self) -> bool:
        """Whether weights have changed since they were last made ready for a gather."""
        for flat in self.flats:  # noqa: SIM110 - once a unit and step: no generator
            if flat.changed():
                return True
        return False

    @property
    def thawing(self) -> list[Flat]:
        """Flats that were frozen when they were sharded, and of which something is to be trained now."""
        frozen = (flat for flat in self.flats if not flat.key.trainable)
        return [flat for flat in frozen if any(param.public.requires_grad for param in flat.params)]

    def show_working(self, *, watch: bool = True) -> None:
        """Let module code see full parameters; ``watch`` lets ``check_unedited`` tell of edits from now on."""
        if self.params:
            self._faces.show_working(watch=watch)
        for empty in self.empties:
            empty.show_working()

    def show_public(self) -> None:
        """Let everyone else see sharded ones, unless full ones are held by hand."""
        if not self.held:
            self._faces.show_public()
            for empty in self.empties:
                empty.show_public()

    def check_unedited(self) -> None:
        """Refuse in-place changes of full parameters, which would be lost.

        Raises:
            StateError: naming the parameter.
        """
        if self.params:
            self._faces.check_unedited()


def _chunk_bytes(flat: Flat) -> int:
    """What this rank gives to a gather, padding between parameters left out."""
    return flat.key.compute_dtype.itemsize * sum(param.layout.chunk for param in flat.params)


def _full_bytes(flat: Flat) -> int:
    return aligned_bytes(flat.layout.full_numel * flat.key.compute_dtype.itemsize)


def _piece(flat: Flat, param: ShardedParam, full: Tensor) -> Piece:
    layout = param.layout
    room = full.narrow(0, layout.full_offset, layout.chunk * flat.layout.world)
    bind_working(param, room.narrow(0, 0, layout.numel).data)  # an edit of it moves no counter but its own
    # The gather writes through ``.data``: an alias whose version counter no saved view shares.
    return Piece(flat.shard.narrow(0, layout.offset, layout.chunk), room.data)


def bind_working(param: ShardedParam, memory: Tensor) -> None:
    """Make (or move) the working parameter over ``memory``; its identity, and so its hooks, survive a move."""
    full = as_shaped(memory, param.layout, param.layout.rows)
    if param.working is None:
        param.working = nn.Parameter(full, requires_grad=param.trainable)
    else:
        param.working.data = full
