"""Bytes on the wire in one training step: counted, by formula, and where the two differ.

Per rank, P parameters of c bytes in compute and r bytes on the wire as gradients, over N ranks:

    stage 0    2 r P (N-1)/N           an all-reduce
    stage 1, 2 (c + r) P (N-1)/N       one gather and one reduce-scatter
    stage 3    (2 c + r) P (N-1)/N     two gathers; one where parameters stay after forward
    hybrid     + 2 r P/N (R-1)/R       shards are all-reduced over R copies of N ranks (stage 0: 2 r P)
    masters over the mesh of N ranks in R rows: a gather is c P (N-R)/N, and once a step + c P (R-1)/N

What a step really sends also depends on padding, on small parameters that are replicated (gradients all-reduced, never
gathered), and on units that are still in their slot when backward needs them. Each is an item of the report, and
``counted == formula + items + other`` holds to the byte for a step that follows its plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from overlap.comm.collective import Communicator
from overlap.comm.volume import WireTotals
from overlap.config import ShardOptions
from overlap.engine.build import ShardGroup
from overlap.schedule.op import Kind
from overlap.schedule.plan import Plan
from overlap.shard.unit import Unit

PLANNED_KINDS = ("gather", "refresh", "reduce", "replicated", "replicate")


@dataclass(frozen=True, slots=True)
class WireReport:
    """One step, in bytes this rank sent.

    Attributes:
        counted: by the communicators, of planned collectives.
        formula: the stage's.
        items: what explains ``counted - formula``, by name.
        other: counted, outside the plan, by kind: ``control`` facts between hosts, ``norm``.
    """

    counted: int
    formula: float
    items: dict[str, float]
    other: dict[str, int]


class WireLedger:
    """Follows the counters of all communicators from one training step to the next."""

    def __init__(self, comms: Sequence[Communicator]) -> None:
        self._comms = comms
        self._start = self._totals()
        self._latest: dict[str, int] = {}
        self._open = False

    def begin(self, *, train: bool) -> None:
        """A pass begins: the training step before it, if any, is over."""
        now = self._totals()
        if self._open:
            self._latest = _sent(now - self._start)
        self._start, self._open = now, train

    def latest(self) -> dict[str, int]:
        """Bytes by kind of the latest training step, up to now if no pass has begun since."""
        return _sent(self._totals() - self._start) if self._open else self._latest

    def _totals(self) -> WireTotals:
        total: Counter[str] = Counter()
        for comm in self._comms:
            total.update(comm.counter.snapshot().sent)
        return WireTotals(dict(total), {})


def _sent(totals: WireTotals) -> dict[str, int]:
    return dict(totals.sent)


def wire_report(
    sent: dict[str, int], units: Sequence[Unit], plan: Plan | None, options: ShardOptions, group: ShardGroup
) -> WireReport:
    """Explain the bytes of one step.

    Args:
        sent: bytes by kind.
        units: all units.
        plan: that the step followed; None (the recorded first step) leaves one unexplained item.
        options: the root's.
        group: the ranks.
    """
    world, replicas = group.world, group.replicas
    counted = sum(sent.get(kind, 0) for kind in PLANNED_KINDS)
    other = {kind: size for kind, size in sent.items() if kind not in PLANNED_KINDS}
    formula = sum(_formula(unit, options, world) for unit in units)
    formula += _crossing_exact(units, options, replicas, shared_by=world if options.sharded else 1)
    if plan is None:
        return WireReport(counted, formula, {"not planned": counted - formula}, other)
    items = {
        "replicated parameters": _replicated(units, options, world, replicas),
        "padding": _padding(units, plan, options, world) + _crossing_padding(units, plan, options, group),
        "gathers more or less than the formula's": _gather_difference(units, plan, world),
    }
    return WireReport(counted, formula, {name: size for name, size in items.items() if size}, other)


def _gathers_by_formula(unit: Unit) -> int:
    if unit.options.stage == 3 and not unit.resident:
        return 2 if unit.reshard_after_forward else 1
    return 1 if unit.options.sharded else 0


def _formula(unit: Unit, options: ShardOptions, world: int) -> float:
    return sum(
        _gather_exact(unit, world, replicated) * _gathers_by_formula(unit)
        + _refresh_exact(unit, world, replicated)
        + _reduce_exact(unit, options, world, replicated) * (1 if options.sharded else 2)
        for replicated in (False, True)
    )


def _gather_exact(unit: Unit, world: int, replicated: bool) -> float:
    """One gather of a unit's sharded (or replicated) parameters, without padding."""
    flats = [flat for flat in unit.flats if flat.key.replicated is replicated]
    return sum(flat.layout.numel * flat.key.compute_dtype.itemsize for flat in flats) * (world - unit.rows) / world


def _refresh_exact(unit: Unit, world: int, replicated: bool) -> float:
    """What crosses between rows of a mesh once a step, without padding."""
    flats = [flat for flat in unit.flats if flat.key.replicated is replicated]
    return sum(flat.layout.numel * flat.key.compute_dtype.itemsize for flat in flats) * (unit.rows - 1) / world


def _reduce_exact(unit: Unit, options: ShardOptions, world: int, replicated: bool) -> float:
    """One reduce-scatter of a unit's sharded (or replicated) gradients, without padding."""
    flats = [flat for flat in unit.flats if flat.key.replicated is replicated and flat.key.trainable]
    return sum(flat.layout.numel for flat in flats) * options.reduce_dtype.itemsize * (world - 1) / world


def _crossing_exact(
    units: Sequence[Unit], options: ShardOptions, replicas: int, shared_by: int, *, small: bool | None = None
) -> float:
    """All-reduces over copies of the model, without padding; of replicated parameters or of the others on request."""
    flats = [flat for unit in units for flat in unit.flats if flat.key.trainable]
    numel = sum(flat.layout.numel for flat in flats if small is None or flat.key.replicated is small)
    return 2 * numel / shared_by * options.reduce_dtype.itemsize * (replicas - 1) / replicas


def _replicated(units: Sequence[Unit], options: ShardOptions, world: int, replicas: int) -> float:
    """They are never gathered, and their gradients are all-reduced: twice a reduce-scatter."""
    if not options.sharded:
        return 0.0
    reduced = sum(_reduce_exact(unit, options, world, True) for unit in units)
    gathered = sum(
        _gather_exact(unit, world, True) * _gathers_by_formula(unit) + _refresh_exact(unit, world, True)
        for unit in units
    )
    crossing = partial(_crossing_exact, units, options, replicas, small=True)
    return reduced - gathered + crossing(1) - crossing(world)


def _gather_difference(units: Sequence[Unit], plan: Plan, world: int) -> float:
    """Units still in their slot need no second gather; recomputed or repeated ones may need a third."""
    planned = Counter(op.index for op in plan.ops if op.kind is Kind.GATHER)
    return sum(
        (planned[n] - _gathers_by_formula(unit)) * _gather_exact(unit, world, False) for n, unit in enumerate(units)
    )


def _padding(units: Sequence[Unit], plan: Plan, options: ShardOptions, world: int) -> float:
    gathers = sum(op.bytes - _gather_exact(units[op.index], world, False) for op in plan.ops if op.kind is Kind.GATHER)
    gathered = {op.index for op in plan.ops if op.kind is Kind.GATHER}
    gathers += sum(units[n].refresh_bytes - _refresh_exact(units[n], world, False) for n in gathered)
    reductions = sum(op.bytes for op in plan.ops if op.kind is Kind.REDUCE)
    exact = sum(
        _reduce_exact(unit, options, world, replicated) * (1 if options.sharded and not replicated else 2)
        for unit in units
        for replicated in (False, True)
    )
    return gathers + reductions - exact


def _crossing_padding(units: Sequence[Unit], plan: Plan, options: ShardOptions, group: ShardGroup) -> float:
    exact = sum(
        _crossing_exact(units, options, group.replicas, 1 if small else group.world, small=small)
        for small in (False, True)
    )
    return sum(op.bytes for op in plan.ops if op.kind is Kind.REPLICATE) - exact
