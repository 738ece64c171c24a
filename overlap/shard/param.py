"""A parameter and its two faces.

    public    DTensor over this rank's rows of the fp32 master. What ``model.parameters()`` returns outside
              forward and backward; optimizers, clipping and checkpoints see it. Made once, never replaced.
    working   plain Parameter over the full tensor in the unit's slot, in compute dtype. What forward uses.

Showing a face is one dictionary store per owner, because both objects live as long as the unit.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from overlap import _compat
from overlap.errors import StateError, message
from overlap.shard.layout import ParamLayout

REPLACED_MARK = "_overlap_replaced"  # on an original, which optimizers and tied modules may still hold: its public face


@dataclass(frozen=True, slots=True)
class Owner:
    """A place in the module tree that holds a parameter; tied parameters have several.

    ``table`` is a module's parameter dictionary. Holding it rather than the module keeps a unit from keeping its
    modules alive.
    """

    table: dict[str, nn.Parameter | None]
    attribute: str


def retie(owners: tuple[Owner, ...]) -> None:
    """Let all owners of a tied parameter hold the first one's: giving modules memory one by one has parted them."""
    for owner in owners[1:]:
        owner.table[owner.attribute] = owners[0].table[owners[0].attribute]


@dataclass(eq=False, slots=True, weakref_slot=True)
class ShardedParam:
    """One physical parameter.

    Attributes:
        fqn: fully qualified name below the outermost sharded module, as in the model before it was sharded.
        owners: where it is registered; also in other units, where it is tied to a parameter of theirs.
        layout: its place in shard, slot and bucket.
        trainable: whether there is room for its gradient; ``public.requires_grad`` says whether it gets one.
        public: the DTensor parameter.
        working: the full parameter for compute, once the unit has memory for it.
        gradient: this rank's rows of the reduced gradient, as a DTensor, once the engine has memory for it.
        arrived: a gradient has come in during the running backward.
        used: a gradient has come in since gradients were last reduced.
        has_moments: one of overlap's optimizers keeps state for it.
        reducing: a backward runs in which lanes may write to ``gradient``.
        kept: ``gradient`` holds what was shown before the running backward.
        hidden: it is not shown while autograd leaves another beside it.
        aside: that part of it, while hooks are to see the other alone.
        discard: what has been accumulated without reduction is to be forgotten.
        reordered: its dimensions are stored in another order than they have.
    """

    fqn: str
    owners: tuple[Owner, ...]
    layout: ParamLayout
    trainable: bool
    public: nn.Parameter
    working: nn.Parameter | None = None
    gradient: DTensor | None = None
    arrived: bool = False
    used: bool = False
    reducing: bool = False
    kept: bool = False
    hidden: bool = False
    aside: Tensor | None = None
    discard: bool = False
    has_moments: bool = False
    reordered: bool = False

    def __post_init__(self) -> None:
        """Work out what every step asks for."""
        self.reordered = self.layout.order != tuple(range(len(self.layout.order)))

    def check_public(self, *, held: bool = False) -> None:
        """As ``Unit.check_faces``, for one parameter; ``held`` says that the full face is shown."""
        public, working = self.public, self.working
        expected = working if held else public
        for owner in self.owners:
            found = owner.table.get(owner.attribute)
            if found is not expected and found is not public:
                cure = "copy values into it, e.g. load_state_dict(assign=False)"
                got = f"another {type(found).__name__}"
                raise StateError(message(f"parameter {self.fqn!r}", "stay the object that sharding made", got, cure))
        if working is not None and working.requires_grad != public.requires_grad:
            working.requires_grad_(public.requires_grad)

    def rows_of(self, grad: Tensor) -> Tensor:
        """This rank's rows of a gradient that somebody else has made; a collective if it is distributed otherwise."""
        if not isinstance(grad, DTensor):
            return grad
        assert isinstance(self.public, DTensor)
        if grad.placements != self.public.placements:
            grad = grad.redistribute(placements=self.public.placements)
        return grad.to_local()

    def take_shown_gradient(self) -> bool:
        """Whether a gradient is shown; one that the user has put in place of ours is copied into our memory first."""
        shown = self.public.grad
        if shown is not self.gradient and shown is not None and self.gradient is not None:
            self.gradient.to_local().copy_(self.rows_of(shown))
            self.public.grad = self.gradient
        return shown is not None

    def show_public(self) -> None:
        """Register the sharded face."""
        for owner in self.owners:
            owner.table[owner.attribute] = self.public


@dataclass(frozen=True, slots=True)
class EmptyParam:
    """A parameter without elements: there is nothing to shard, and compute still wants its dtype."""

    public: nn.Parameter
    owners: tuple[Owner, ...]
    dtype: torch.dtype

    def show_working(self) -> None:
        """Register it in compute dtype; its gradient, as empty, goes to the parameter itself."""
        working = self.public.to(self.dtype)
        for owner in self.owners:
            owner.table[owner.attribute] = working  # type: ignore[assignment]

    def show_public(self) -> None:
        """Register the parameter itself."""
        for owner in self.owners:
            owner.table[owner.attribute] = self.public


def local_rows(flat: Tensor, layout: ParamLayout, rank: int) -> Tensor:
    """This rank's rows of a parameter as a view of a flat buffer, padding left out; fewer in ``layout.dim`` only."""
    _, rows = layout.rows_of(rank)
    stored = flat.narrow(0, layout.offset, rows * layout.row_numel)
    return as_shaped(stored, layout, rows)


def rows_in(full: Tensor, layout: ParamLayout, rank: int) -> Tensor:
    """This rank's rows of a full parameter."""
    start, rows = layout.rows_of(rank)
    return full.narrow(layout.dim, start, rows) if layout.shape else full


def as_shaped(stored: Tensor, layout: ParamLayout, rows: int) -> Tensor:
    """View contiguous elements of ``rows`` rows in the parameter's own order of dimensions."""
    if not layout.shape:
        return stored.view(())
    return stored.view(rows, *layout.stored_shape[1:]).permute(layout.places)


def as_dtensor(local: Tensor, layout: ParamLayout, mesh: DeviceMesh, *, replicated: bool) -> DTensor:
    """Wrap local rows without communication; global shape and strides are those of the full parameter."""
    shape = torch.Size(layout.shape)
    # The last dimension of a mesh is the one that shards; one before it holds replicas.
    placements = [*([Replicate()] * (mesh.ndim - 1)), Replicate() if replicated else Shard(layout.dim)]
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=layout.strides)


def make_public(local: DTensor, original: nn.Parameter) -> nn.Parameter:
    """The public parameter; keeps the original's attributes and hooks."""
    public = nn.Parameter(local, requires_grad=original.requires_grad)
    public.__dict__.update(original.__dict__)
    _compat.share_hooks(original, public)
    return public


def mark_replaced(given: Mapping[nn.Parameter, tuple[str, tuple[Owner, ...]]]) -> None:
    """Mark the parameters that a module had before, meta ones too: others may hold them, tied or to train them."""
    for original, (_, owners) in given.items():
        public = owners[0].table[owners[0].attribute]
        if public is not None and public is not original:
            setattr(original, REPLACED_MARK, weakref.ref(public))


def replaced_by(original: nn.Parameter) -> nn.Parameter | None:
    """The public face that has taken a parameter's place; None if there is none, or its model is gone."""
    mark = original.__dict__.get(REPLACED_MARK)
    public: nn.Parameter | None = mark() if mark is not None else None
    return public
