"""Memory of the model states: what the layout predicts, what is allocated, what the stage's formula says.

Model states are weights, gradients and optimizer state (ZeRO, Rajbhandari et al. 2020, section 3); slots, bucket ring
and receive buffers come on top and are listed too. Per parameter, with compute dtype of c bytes, gradients of g,
fp32 master and moments, over N ranks:

    stage 0   c + g + 12              c = 0 where compute is fp32: the master is the weight
    stage 1   c + g + 12 / N
    stage 2   c + (g + 12) / N
    stage 3   (c + g + 12) / N        c = 0 likewise
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from overlap.config import ShardOptions
from overlap.engine.gradients import Gradients
from overlap.engine.slots import SlotMap
from overlap.shard.flat import Flat
from overlap.shard.unit import Unit

MOMENT_BYTES = 8


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One kind of buffer.

    Attributes:
        name: what it holds.
        predicted: bytes by layout arithmetic.
        allocated: bytes of the storages that exist.
        state: counts as model state; otherwise it comes on top.
    """

    name: str
    predicted: int
    allocated: int
    state: bool


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """All items, and the stage's formula for the model states, in bytes on this rank."""

    items: tuple[MemoryItem, ...]
    formula: int

    @property
    def predicted(self) -> int:
        """Model states by layout arithmetic."""
        return sum(item.predicted for item in self.items if item.state)

    @property
    def allocated(self) -> int:
        """Model states in memory."""
        return sum(item.allocated for item in self.items if item.state)

    @property
    def on_top(self) -> int:
        """Slots, buckets and receive buffers in memory."""
        return sum(item.allocated for item in self.items if not item.state)


def memory_report(
    units: Sequence[Unit],
    slots: SlotMap,
    gradients: Gradients,
    options: ShardOptions,
    *,
    world: int,
    scratch: int,
) -> MemoryReport:
    """Compare prediction and allocation.

    Args:
        units: all units.
        slots: of the engine.
        gradients: of the engine.
        options: the root's.
        world: ranks.
        scratch: bytes of receive buffers of the communicators; grown on demand, so predicted as they are.
    """
    flats = [flat for unit in units for flat in unit.flats]
    items = (
        *_state_items(flats, options),
        _full_parameters(units, slots, state=options.resident),
        _buckets("full gradients", gradients, own=True, state=options.stage == 1),
        _buckets("bucket ring", gradients, own=False, state=False),
        _partials(gradients),
        MemoryItem("receive buffers", scratch, scratch, False),
    )
    kept = tuple(item for item in items if item.predicted or item.allocated)
    return MemoryReport(kept, round(sum(_formula(flat, options, world) for flat in flats)))


def _state_items(flats: Sequence[Flat], options: ShardOptions) -> Iterator[MemoryItem]:
    trainable = [flat for flat in flats if flat.key.trainable]
    apart = [flat for flat in flats if flat.key.master_dtype != flat.key.compute_dtype]
    firsts = [flat for flat in trainable if flat.exp_avg is not None]
    seconds = [flat for flat in trainable if flat.exp_avg_sq is not None]
    yield _item("master", flats, lambda flat: flat.key.master_dtype.itemsize, [flat.master for flat in flats])
    yield _item("gather input", apart, lambda flat: flat.key.compute_dtype.itemsize, [flat.shard for flat in apart])
    grads = [flat.grad for flat in trainable if flat.grad is not None]
    yield _item("gradients", trainable, lambda _: options.grad_dtype.itemsize, grads)
    moments = [moment for flat in firsts for moment in (flat.exp_avg, flat.exp_avg_sq) if moment is not None]
    yield _item("moments", [*firsts, *seconds], lambda _: MOMENT_BYTES // 2, moments)


def _item(name: str, flats: Iterable[Flat], itemsize, tensors: Sequence[Tensor]) -> MemoryItem:  # type: ignore[no-untyped-def]
    predicted = sum(flat.layout.shard_numel * itemsize(flat) for flat in flats)
    return MemoryItem(name, predicted, _storage_bytes(tensors), True)


def _full_parameters(units: Sequence[Unit], slots: SlotMap, *, state: bool) -> MemoryItem:
    sizes: dict[int, int] = {}
    for unit, number in zip(units, slots.of_unit, strict=True):
        sizes[number] = max(sizes.get(number, 0), unit.slot_bytes)
    name = "full parameters" if state else "slots"
    return MemoryItem(name, sum(sizes.values()), slots.nbytes, state)


def _buckets(name: str, gradients: Gradients, *, own: bool, state: bool) -> MemoryItem:
    if own:
        kept = [bucket for bucket in gradients.buckets if bucket.own is not None]
        tensors = [bucket.own for bucket in kept if bucket.own is not None]
        return MemoryItem(
            name,
            sum(bucket.numel * gradients.accumulation_dtype.itemsize for bucket in kept),
            _storage_bytes(tensors),
            state,
        )
    sizes: dict[int, int] = {}
    for bucket, spec in zip(gradients.buckets, gradients.specs(), strict=True):
        if bucket.shared is not None:
            sizes[spec.buffer] = max(sizes.get(spec.buffer, 0), bucket.nbytes)
    return MemoryItem(name, sum(sizes.values()), _storage_bytes(gradients.ring), state)


def _partials(gradients: Gradients) -> MemoryItem:
    """Gradients summed within one copy of the model only, kept between micro-batches on request."""
    kept = [bucket for bucket in gradients.buckets if bucket.partial is not None]
    predicted = sum(bucket.width for bucket in kept) * gradients.accumulation_dtype.itemsize
    tensors = [bucket.partial for bucket in kept if bucket.partial is not None]
    return MemoryItem("partial gradients", predicted, _storage_bytes(tensors), False)


def _storage_bytes(tensors: Iterable[Tensor]) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _formula(flat: Flat, options: ShardOptions, world: int) -> float:
    """Bytes by the stage's formula; frozen parameters have weights only."""
    numel = flat.layout.numel
    apart = flat.key.master_dtype != flat.key.compute_dtype
    weights = flat.key.compute_dtype.itemsize if apart or options.stage in (1, 2) else 0
    master = flat.key.master_dtype.itemsize
    grads = options.grad_dtype.itemsize if flat.key.trainable else 0
    optimizer = master + (MOMENT_BYTES if flat.key.trainable else 0)
    shared = {0: 0, 1: optimizer, 2: optimizer + grads, 3: optimizer + grads + weights}[options.stage]
    return numel * (weights + grads + optimizer - shared + shared / world)
