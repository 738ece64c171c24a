"""Models as trees of units, and the order in which hooks see a training step pass through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from overlap.schedule.op import ENTRY_OF_EXIT, EXIT_OF_ENTRY, Kind, Position
from overlap.schedule.spec import NO_SLOT, BucketSpec, StepSpec, UnitSpec, ring_slots

ROOT = 0


@dataclass(frozen=True)
class Call:
    """One call of a unit, and the calls of other units inside it."""

    unit: int
    inner: tuple[Call, ...] = ()

    def walk(self) -> Iterator[Call]:
        yield self
        for call in self.inner:
            yield from call.walk()


@dataclass(frozen=True)
class Model:
    """Units in module order, and which buckets each one's gradients complete."""

    spec: StepSpec
    children: tuple[tuple[int, ...], ...]
    buckets: tuple[tuple[int, ...], ...]
    prefetch: int

    def is_leaf(self, unit: int) -> bool:
        return self.spec.units[unit].leaf

    def call(self, unit: int = ROOT) -> Call:
        """Every unit inside ``unit`` once, in module order."""
        return Call(unit, tuple(self.call(child) for child in self.children[unit]))


def build(
    children: Sequence[Sequence[int]],
    *,
    prefetch: int,
    ring: int | None = None,
    buckets: Sequence[int] = (),
    buffers: int | Sequence[int] = 2,
    empty: frozenset[int] = frozenset(),
    resident: bool = False,
    replicas: bool = False,
) -> Model:
    """Lay out a tree as the engine does.

    Args:
        children: per unit, the units inside it; unit 0 is the root.
        prefetch: for plans of this model.
        ring: slots that leaf units share; None means prefetch + 1, or a slot each if resident.
        buckets: per unit, how many; missing ones have one.
        buffers: how many buckets take turns on; or which buffer each bucket has, over and over.
        empty: units without sharded parameters.
        resident: full parameters stay from step to step.
        replicas: what is reduced crosses to other copies of the model.
    """
    leaf = tuple(not inner for inner in children)
    ring = ring or (max(sum(leaf), 1) if resident else prefetch + 1)
    slots = ring_slots(tuple(range(len(children))), leaf, ring)
    units = tuple(
        UnitSpec(f"u{n}" if n else "", NO_SLOT if n in empty else slots[n], 10 + n, 100 + n, leaf[n], resident)
        for n in range(len(children))
    )
    counts = [*buckets, *(1 for _ in range(len(children) - len(buckets)))]
    owners = [unit for unit in reversed(range(len(children))) for _ in range(counts[unit])]
    turns = range(buffers) if isinstance(buffers, int) else buffers
    specs = tuple(
        BucketSpec(f"b{n}", turns[n % len(turns)], 20 + n, 200 + n, 30 + n if replicas else 0)
        for n in range(len(owners))
    )
    owned = tuple(tuple(n for n, owner in enumerate(owners) if owner == unit) for unit in range(len(children)))
    return Model(StepSpec(units, specs), tuple(tuple(inner) for inner in children), owned, prefetch)


def chain(blocks: int, *, prefetch: int, **options: object) -> Model:
    """A root around ``blocks`` blocks."""
    return build([range(1, blocks + 1), *([] for _ in range(blocks))], prefetch=prefetch, **options)


def forward(call: Call) -> list[Position]:
    """Entries and exits of a forward."""
    inner = [position for each in call.inner for position in forward(each)]
    return [Position(Kind.FORWARD, call.unit), *inner, Position(Kind.FORWARD_END, call.unit)]


@dataclass(frozen=True)
class Recompute:
    """Leaf units whose forward runs again: ahead of their backward's entry, or (as saved-tensor hooks do) behind it."""

    ahead: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()


def backward(model: Model, call: Call, recompute: Recompute = Recompute(), leaves: int | None = None) -> list[Position]:
    """Entries, packs and exits of a backward; ``leaves`` ends it after so many leaf calls, as a detached input does."""
    calls = [each for each in call.walk() if model.is_leaf(each.unit)][::-1]
    reached = {id(each) for each in calls[:leaves]}
    return _Backward(model, recompute, call, reached).positions


class _Backward:
    """Leaves open and close one after another; units around them close when autograd is through."""

    def __init__(self, model: Model, recompute: Recompute, root: Call, reached: set[int]) -> None:
        self.model, self.recompute, self.reached = model, recompute, reached
        self.first_use = {each.unit: id(each) for each in reversed([*root.walk()])}
        self.positions: list[Position] = []
        self.open: list[int] = []
        self._enter(root)
        for unit in reversed(self.open):
            self.positions.append(Position(Kind.BACKWARD_END, unit))

    def _enter(self, call: Call) -> None:
        if self.model.is_leaf(call.unit):
            if id(call) in self.reached:
                self._leaf(call)
            return
        if call.unit not in self.open:
            self.positions.append(Position(Kind.BACKWARD, call.unit))
            self.open.append(call.unit)
        for inner in reversed(call.inner):
            self._enter(inner)
        self._pack(call)

    def _leaf(self, call: Call) -> None:
        again = forward(Call(call.unit))
        if call.unit in self.recompute.ahead:
            self.positions += again
        self.positions.append(Position(Kind.BACKWARD, call.unit))
        if call.unit in self.recompute.behind:
            self.positions += again
        self._pack(call)
        self.positions.append(Position(Kind.BACKWARD_END, call.unit))

    def _pack(self, call: Call) -> None:
        if self.first_use[call.unit] == id(call):
            self.positions += [Position(Kind.PACK, bucket) for bucket in self.model.buckets[call.unit]]


def step(model: Model, call: Call | None = None, recompute: Recompute = Recompute()) -> list[Position]:
    """A whole training step."""
    call = call or model.call()
    return forward(call) + backward(model, call, recompute)


def is_entry(position: Position) -> bool:
    return position.kind in EXIT_OF_ENTRY


def is_exit(position: Position) -> bool:
    return position.kind in ENTRY_OF_EXIT
