"""The one storage rule: a unit's shards lie back to back, and every buffer over them has the same offsets.

    offset      0          aligned (layout.py)
    master      | p0 rows  | p1 rows  | ...   fp32, what the optimizer updates; public parameters are views of it
    shard       | p0 rows  | p1 rows  | ...   compute dtype, what a gather sends; the master itself in fp32
    grad        | p0 rows  | p1 rows  | ...   reduced gradient
    exp_avg(_sq)| p0 rows  | p1 rows  | ...   fp32 moments, made by the optimizer: both, or the first alone

Hence one update launch and one norm launch per flat. Parameters that are replicated form a flat of world 1: its
shard holds them whole, and compute uses it directly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from overlap import _compat
from overlap.errors import ConfigError, message
from overlap.shard.layout import FlatLayout
from overlap.shard.param import ShardedParam, as_dtensor, local_rows

TRAINABLE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_HOME_MARK = "_overlap_home"  # on the public face of a parameter


@dataclass(frozen=True, slots=True)
class FlatKey:
    """What the parameters of one flat have in common."""

    replicated: bool
    trainable: bool
    master_dtype: torch.dtype
    compute_dtype: torch.dtype


class InOrder(Protocol):
    """Runs work behind everything that compute has been given before."""

    def __call__(self, kind: str, nbytes: int, run: Callable[[], None]) -> None:
        """``kind`` and ``nbytes`` (memory read and written) are for the timeline."""


def _ignore(flat: Flat) -> None:
    """What a flat does not tell anybody."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Flat:
    """Buffers of one flat.

    Attributes:
        key: what its parameters share.
        layout: offsets.
        rank: which rows are this rank's (0 for a replicated flat).
        mesh: of the ranks that share it.
        params: in layout order.
        master: ``[shard_numel]``, ``key.master_dtype``.
        shard: ``[shard_numel]``, ``key.compute_dtype``; the same tensor as ``master`` when the dtypes agree.
        grad: ``[shard_numel]``, gradient dtype; given by the engine, None for frozen parameters.
        exp_avg: ``[shard_numel]`` fp32, given by ``overlap.AdamW`` or ``overlap.Muon``.
        exp_avg_sq: ``[shard_numel]`` fp32, given by ``overlap.AdamW``.
        order: how an engine runs work in the order of its compute lane.
        updated: the fused optimizer has written master and shard since the last refresh.
        _counting: tensors whose versions tell of changes: public parameters and what is inside of them, which do not
            count together.
        _seen: their versions at the last refresh; None where the shard is to be made anew.
    """

    key: FlatKey
    layout: FlatLayout
    rank: int
    master: Tensor
    shard: Tensor
    mesh: DeviceMesh
    params: list[ShardedParam] = field(default_factory=list)
    grad: Tensor | None = None
    exp_avg: Tensor | None = None
    exp_avg_sq: Tensor | None = None
    updated: bool = False
    order: InOrder | None = None
    _counting: list[Tensor] = field(default_factory=list)
    _seen: list[int] | None = None

    def in_order(self, kind: str, nbytes: int, run: Callable[[], None]) -> None:
        """Do work in the order of compute: at once while there is no engine, else as a job of its compute lane."""
        if self.order is None:
            run()
        else:
            self.order(kind, nbytes, run)

    def add(self, param: ShardedParam) -> None:
        """Take in the parameter at the next place of the layout."""
        self.params.append(param)
        self._count_changes(param)
        # Weak: a flat holds its public parameters, and both must go when the model goes.
        param.public.__dict__[_HOME_MARK] = (weakref.ref(self), weakref.ref(param))

    def rows_of(self, buffer: Tensor, param: ShardedParam) -> DTensor:
        """This rank's rows of a parameter in one of the flat's buffers, as a DTensor that shares its memory."""
        return self.rows_like(local_rows(buffer, param.layout, self.rank), param)

    def rows_like(self, local: Tensor, param: ShardedParam) -> DTensor:
        """This rank's rows of anything laid out like a parameter, as a DTensor that shares their memory."""
        return as_dtensor(local, param.layout, self.mesh, replicated=self.key.replicated)

    def check_trainable(self) -> None:
        """Refuse to train what has another dtype than can be trained.

        Raises:
            ConfigError: naming a parameter.
        """
        if self.key.master_dtype not in TRAINABLE_DTYPES:
            subject, cure = f"parameter {self.params[0].fqn!r}", "leave it frozen, or convert it before sharding"
            raise ConfigError(message(subject, "be fp32, bf16 or fp16 to be trained", str(self.key.master_dtype), cure))

    def thaw(self) -> None:
        """Make what was frozen trainable: weights widen to fp32; the gather's input stays where it is."""
        self.key = replace(self.key, trainable=True, master_dtype=torch.float32)
        if self.master.dtype != torch.float32:
            current = not self.changed()
            self.master = self.master.float()
            self._counting = []
            for param in self.params:
                _compat.put_into(param.public, self.rows_of(self.master, param))
                self._count_changes(param)
            self._seen = _compat.versions_of(self._counting) if current else None
        for param in self.params:
            param.trainable = True

    def _count_changes(self, param: ShardedParam) -> None:
        self._counting += [param.public, _compat.local_tensor(param.public)]

    def changed(self) -> bool:
        """Whether weights have changed since the last refresh."""
        return self.updated or _compat.versions_of(self._counting) != self._seen

    def mark_changed(self) -> None:
        """Weights have been changed behind the version counters."""
        self._seen = None

    def refresh_shard(self, before: Callable[[Flat], None] = _ignore) -> bool:
        """Bring the shard up to date; True if full parameters gathered earlier are old.

        Args:
            before: is told of the flat whose shard is about to change, or has been changed by the fused optimizer.

        The fused optimizer writes the shard itself and says so in ``updated``. Every other change is seen by the
        version counters of the public parameters and their local tensors: in-place edits, other optimizers,
        ``load_state_dict``, DCP. Edits of ``param.data`` move no counter: call ``mark_changed`` after them.
        """
        versions = _compat.versions_of(self._counting)
        changed = versions != self._seen
        self._seen = versions
        if changed or self.updated:
            before(self)
        if changed and self.shard is not self.master:
            self.shard.copy_(self.master)
        changed |= self.updated
        self.updated = False
        return changed


class Home(NamedTuple):
    """Where a public parameter lives."""

    flat: Flat
    param: ShardedParam


def home_of(parameter: Tensor) -> Home | None:
    """Flat and sharded parameter behind a public face; None for any other parameter, and once the model is gone."""
    mark = parameter.__dict__.get(_HOME_MARK)
    if mark is None:
        return None
    flat, param = mark[0](), mark[1]()
    return Home(flat, param) if flat is not None and param is not None else None


def empty_flat(key: FlatKey, layout: FlatLayout, rank: int, device: torch.device, mesh: DeviceMesh) -> Flat:
    """Allocate a flat; padding is zero and stays so, so that norms and updates may run over all of it."""
    master = torch.zeros(layout.shard_numel, dtype=key.master_dtype, device=device)
    same = key.master_dtype == key.compute_dtype
    shard = master if same else torch.zeros(layout.shard_numel, dtype=key.compute_dtype, device=device)
    return Flat(key, layout, 0 if key.replicated else rank, master, shard, mesh)
