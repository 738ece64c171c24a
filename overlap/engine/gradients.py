"""Gradients on their way: from autograd into buckets, over the wire, to where the optimizer reads them.

    working.grad --pack (compute lane)--> bucket --reduce (reduce lane)--> flat.grad == public.grad
                                                  `--> this rank's row --replicate (replicate lane)--> flat.grad

The second way is hybrid sharding's: a row summed over one copy of the model crosses to the others.

Accumulating without reduction packs into a bucket's own memory, in the accumulation dtype. Reduced gradients are added
to what ``public.grad`` holds, or replace it where it is None, as ``backward`` does in one process.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from overlap import _compat, ops
from overlap.comm.collective import Communicator
from overlap.comm.control import ControlChannel
from overlap.comm.volume import Collective, wire_bytes
from overlap.config import ShardOptions
from overlap.engine import gradient_face as faces
from overlap.schedule.spec import BucketSpec
from overlap.shard.bucket import Bucket, make_buckets
from overlap.shard.flat import Flat
from overlap.shard.param import ShardedParam
from overlap.shard.unit import Unit

# Two buckets take turns: one is packed while the other is on the wire.
RING = 2

NO_BACKWARD = -1
"""What autograd numbers the running backward with where it does not run one itself."""


class Gradients:
    """All buckets of an engine and the memory behind them."""

    def __init__(
        self, units: Sequence[Unit], options: ShardOptions, comm: Communicator, replicas: Communicator | None = None
    ) -> None:
        """Cut buckets and allocate gradient memory.

        Args:
            units: in order of forward.
            options: the root's.
            comm: the reduce lane's.
            replicas: the replicate lane's; None where there is one copy of the model.
        """
        self.options, self._comm, self._replicas = options, comm, replicas
        self._ranks = comm.world * (replicas.world if replicas is not None else 1)
        self.divide_factor = float(self._ranks)
        self.buckets: list[Bucket] = []
        self.params: list[ShardedParam] = []
        self.ring: list[torch.Tensor] = []
        self._bucket_of: dict[int, int] = {}
        self._backward = NO_BACKWARD
        self._begun: set[Flat] = set()
        self.reducing = self.replicating = True
        self.late: set[int] = set()  # buckets that must leave once more
        self.take_in(units)

    def take_in(self, units: Sequence[Unit]) -> None:
        """Give buckets and memory to all trainable flats that have none yet; what others have is left as it is."""
        known = {stretch.flat for bucket in self.buckets for stretch in bucket.stretches}
        options = self.options
        self.buckets += make_buckets(
            units,
            options.bucket_bytes,
            options.reduce_dtype,
            ranks=self._ranks,
            merge_replicated=options.sharded,
            known=known,
        )
        self.params = [param for bucket in self.buckets for param in bucket.params]
        self._bucket_of = {id(param): n for n, bucket in enumerate(self.buckets) for param in bucket.params}
        for flat in (flat for unit in units for flat in unit.flats if flat.key.trainable):
            _give_gradient(flat, options.grad_dtype)
        for param in self.params:
            faces.watch_direct(param)
        self.ring = self._make_ring()

    @property
    def accumulation_dtype(self) -> torch.dtype:
        """Of gradients that are not reduced yet: the wider of what travels and what the optimizer reads."""
        return torch.promote_types(self.options.grad_dtype, self.options.reduce_dtype)

    # -- memory ------------------------------------------------------------------------------------------------

    def _make_ring(self) -> list[torch.Tensor]:
        if self._keeps_full_gradients:
            for bucket in self.buckets:
                if not bucket.replicated:
                    bucket.take_own(self.accumulation_dtype)
        turns = [bucket for bucket in self.buckets if bucket.shared is not None or _needs_turn(bucket)]
        memory = []
        for place in range(min(RING, len(turns))):
            shares = turns[place::RING]
            numel = max(bucket.numel for bucket in shares)
            memory.append(turns[0].take_zeros(numel, self.options.reduce_dtype))
            for bucket in shares:
                bucket.share(memory[-1])
        return memory

    @property
    def _keeps_full_gradients(self) -> bool:
        """Stage 1 shards the optimizer state only: gradients stay whole until they are reduced."""
        return self.options.stage == 1

    def specs(self) -> tuple[BucketSpec, ...]:
        """What the planner needs to know."""
        turns = [n for n, bucket in enumerate(self.buckets) if bucket.shared is not None]
        buffer = {n: place % RING for place, n in enumerate(turns)}
        return tuple(
            BucketSpec(
                bucket.name,
                buffer.get(n, RING + n),
                self._wire_bytes(bucket),
                bucket.nbytes,
                self._crossing_bytes(bucket),
            )
            for n, bucket in enumerate(self.buckets)
        )

    def _wire_bytes(self, bucket: Bucket) -> int:
        collective: Collective = "all_reduce" if bucket.replicated else "reduce_scatter"
        return wire_bytes(collective, bucket.nbytes, self._comm.world)

    def _crossing_bytes(self, bucket: Bucket) -> int:
        if self._replicas is None:
            return 0
        return wire_bytes("all_reduce", bucket.width * bucket.dtype.itemsize, self._replicas.world)

    # -- a backward --------------------------------------------------------------------------------------------

    def open_backward(self, *, reducing: bool, replicating: bool = True) -> None:
        """Count from zero.

        Args:
            reducing: False accumulates on this rank.
            replicating: False accumulates on this rank's copy of the model; needs several copies.
        """
        self.reducing, self.replicating = reducing, replicating or self._replicas is None
        self.late.clear()
        self._backward = _compat.current_backward()
        self._begun.clear()
        for bucket in self.buckets:
            bucket.packed = False
            bucket.forget_discarded()
            # Passes have seen to it that both faces agree on what is trained; a plain parameter tells faster.
            bucket.missing = sum([param.working.requires_grad for param in bucket.params])  # type: ignore[union-attr]
        faces.keep(self.params)

    def abandon(self) -> None:
        """Forget what an unfinished backward has left."""
        for param in self.params:
            assert param.working is not None
            param.working.grad = None
        self.restore()

    def restore(self) -> None:
        """Show again what was shown before a backward that has reduced nothing."""
        faces.restore(self.params)

    def arrived(self, param: ShardedParam) -> int | None:
        """A gradient is there; the bucket that it completes, if it does."""
        param.used = True
        number = self._bucket_of[id(param)]
        bucket = self.buckets[number]
        if bucket.packed:
            # Reentrant checkpointing brings gradients that nobody could expect, and some of them twice.
            self.late.add(number)
            return None
        if param.arrived:
            return None
        param.arrived = True
        bucket.missing -= 1
        return number if bucket.missing == 0 else None

    def pack(self, number: int) -> None:
        """Move the gradients of a bucket out of autograd; on the compute lane, which made them."""
        bucket = self.buckets[number]
        keep = bucket.accumulating or not self.reducing or bucket.own is not None
        target = bucket.take_own(self.accumulation_dtype) if keep else bucket.take_shared()
        grads = _taken_gradients(bucket.params)
        ops.pack(grads, target, bucket.slots, scale=1.0 / self.divide_factor, accumulate=bucket.accumulating)
        bucket.accumulating = not self.reducing
        if self.reducing and target.dtype != bucket.dtype:  # accumulated wider than the wire
            target = bucket.take_shared().copy_(target)
        bucket.source = target
        if self.reducing:
            bucket.adds = bucket.packed or self._prepare(bucket)
        bucket.packed = True

    def _prepare(self, bucket: Bucket) -> bool:
        """Make room for what the reduction adds to; True if anything is to be kept."""
        if not any([param.kept for param in bucket.params]):  # noqa: C419 - without a generator
            return False
        for param in bucket.params:
            faces.make_room(param)
        return True

    def reduce(self, number: int) -> None:
        """Sum a packed bucket over the ranks; on the reduce lane."""
        bucket = self.buckets[number]
        source = bucket.source
        assert source is not None
        if self._replicas is not None:
            self._reduce_within_copy(bucket, source)
        elif bucket.replicated:
            self._comm.all_reduce(source.view(-1), "replicated")
            _deliver(bucket, source.view(-1))
            self._poison(bucket, source)
        else:
            self._comm.reduce_scatter(source, bucket.take_reduced(), "reduce", accumulate=bucket.adds)
            self._poison(bucket, source)

    def _reduce_within_copy(self, bucket: Bucket, source: torch.Tensor) -> None:
        """Leave in ``bucket.crossing`` what is to be summed over copies, or keep it until a backward that does so."""
        row = source[0 if bucket.replicated else self._comm.rank]
        keep = bucket.holds_partial or not self.replicating
        target = bucket.take_partial(self.accumulation_dtype) if keep else row
        if bucket.replicated:
            self._comm.all_reduce(row, "replicated")
            if keep:
                ops.reduce_sum([row], target, accumulate=bucket.holds_partial)
        else:
            self._comm.reduce_scatter(source, target, "reduce", accumulate=bucket.holds_partial)
        bucket.holds_partial = not self.replicating
        if self.replicating and target.dtype != bucket.dtype:
            target = row.copy_(target)
        bucket.crossing = target

    def replicate(self, number: int) -> None:
        """Sum this rank's reduced row of a bucket over all copies of the model; on the replicate lane."""
        bucket = self.buckets[number]
        assert self._replicas is not None
        assert bucket.crossing is not None
        assert bucket.source is not None
        self._replicas.all_reduce(bucket.crossing, "replicate")
        _deliver(bucket, bucket.crossing)
        self._poison(bucket, bucket.source)

    def _poison(self, bucket: Bucket, source: torch.Tensor) -> None:
        if self.options.poison and source is not bucket.own:
            source.fill_(float("nan"))

    def settle(self, control: ControlChannel) -> list[int]:
        """Agree with all ranks on which parameters were used, and which buckets must go once more.

        A parameter that got a gradient on any rank has one everywhere; one that got none anywhere keeps
        ``grad = None``, so that its weights, moments and step count stay untouched. A collective of one byte per
        parameter and bucket, between hosts.
        """
        facts = torch.zeros(len(self.params) + len(self.buckets), dtype=torch.uint8)
        used = torch.tensor([param.used for param in self.params], dtype=torch.uint8)
        facts[: len(used)] = used
        facts[[len(used) + n for n in self.late]] = 1
        facts = control.all_max(facts)
        for param, fact in zip(self.params, facts[: len(used)].tolist(), strict=True):
            param.used = bool(fact)
        return [n for n, fact in enumerate(facts[len(used) :].tolist()) if fact]

    @property
    def frozen_buckets(self) -> list[int]:
        """Those of which nothing is trained in the backward that has been opened."""
        return [number for number, bucket in enumerate(self.buckets) if bucket.missing == 0]

    def note_backward(self, unit: Unit) -> None:
        """A unit's backward is about to run."""
        self._begun.update(unit.flats)

    def expects_more(self, number: int, *, passed: bool) -> bool:
        """Whether a bucket lacks gradients that this backward brings; True where that cannot be told.

        Autograd knows which nodes it will run, but not those of backwards within this one (reentrant checkpointing).
        So it is asked once the bucket's place in the plan has ``passed``, or else its unit's backward has begun.
        """
        if self._backward == NO_BACKWARD or _compat.current_backward() != self._backward:
            return True
        if not passed and not all(stretch.flat in self._begun for stretch in self.buckets[number].stretches):
            return True
        lacking = (param.working for param in self.buckets[number].params if not param.arrived)
        return any(each is not None and each.requires_grad and _compat.will_accumulate(each) for each in lacking)

    @property
    def any_used(self) -> bool:
        """Whether there is anything to reduce or to keep: ``autograd.grad`` for an input alone leaves nothing."""
        return any(param.used for param in self.params)

    def publish(self) -> None:
        """Show reduced gradients as ``.grad`` of the public parameters, and run their hooks."""
        faces.publish(self.params)


def _needs_turn(bucket: Bucket) -> bool:
    return bucket.own is None or bucket.own.dtype != bucket.dtype


def _deliver(bucket: Bucket, row: torch.Tensor) -> None:
    """Put a reduced row where the optimizer reads it."""
    for stretch in bucket.stretches:
        part = row.narrow(0, stretch.column, stretch.width)
        ops.reduce_sum([part], stretch.gradient(), accumulate=bucket.adds)


def _give_gradient(flat: Flat, dtype: torch.dtype) -> None:
    if flat.grad is not None:
        return
    flat.grad = torch.zeros_like(flat.master, dtype=dtype)
    for param in flat.params:
        param.gradient = flat.rows_of(flat.grad, param)
        if dtype != param.public.dtype:
            param.public.grad_dtype = dtype


def _taken_gradients(params: Sequence[ShardedParam]) -> list[torch.Tensor | None]:
    """Take gradients from the full parameters, each as its elements are stored."""
    taken = []
    for param in params:
        working = param.working
        assert working is not None
        grad = working.grad
        working.grad = None
        if grad is not None and grad.layout != torch.strided:  # of nn.Embedding(sparse=True)
            grad = grad.to_dense()
        taken.append(grad.permute(param.layout.order) if param.reordered and grad is not None else grad)
    return taken
