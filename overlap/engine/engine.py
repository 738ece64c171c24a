"""The engine of one model: units, memory, lanes, and the passes that run over them.

passes      forward and backward (passes.py), along plans (plans.py) that schedule/executor.py carries out
residency   which slot each unit has, and for how long (residency.py)
gradients   buckets and what happens to them (gradients.py)
by_hand     what users ask for between passes (by_hand.py)
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch.utils.hooks import RemovableHandle

from overlap import nvtx
from overlap.comm.collective import Communicator
from overlap.comm.two_level import TwoLevelCommunicator
from overlap.config import ShardOptions
from overlap.engine import backend
from overlap.engine.bindings import Bindings
from overlap.engine.build import ShardGroup
from overlap.engine.by_hand import ByHand
from overlap.engine.gradients import Gradients
from overlap.engine.memory import MemoryReport, memory_report
from overlap.engine.observe import TimelineWatch
from overlap.engine.passes import Passes
from overlap.engine.plans import PlanBook
from overlap.engine.residency import Residency
from overlap.engine.slots import SlotMap
from overlap.engine.ties import find_lenders
from overlap.engine.wire import WireLedger, WireReport, wire_report
from overlap.errors import StateError, message
from overlap.optim.order import ComputeOrder
from overlap.profiling.timeline import Timeline
from overlap.schedule.executor import Executor
from overlap.schedule.op import LaneName
from overlap.schedule.plan import Plan
from overlap.schedule.ranges import ComputeRanges
from overlap.schedule.trace import ComputeTrace
from overlap.shard.flat import Flat
from overlap.shard.unit import Unit


class Engine:
    """Runs the passes of one model. Made at the first forward of its outermost sharded module."""

    def __init__(self, units: Sequence[Unit], group: ShardGroup, options: ShardOptions) -> None:
        """Allocate memory, open lanes and communicators. A collective.

        Args:
            units: in module order, the outermost first.
            group: the ranks.
            options: the outermost unit's; what concerns the whole model is taken from it.
        """
        if nvtx.demanded():
            options = replace(options, nvtx=True)
        self.units, self.group, self.options = tuple(units), group, options
        find_lenders(units)
        self._watch = TimelineWatch(group.rank) if options.timeline else None
        self.comms = backend.open_communicators(group)
        self.lanes = backend.open_lanes(group, options, self._watch)
        self.gradients = Gradients(units, options, self.comms[LaneName.REDUCE], self.comms.get(LaneName.REPLICATE))
        self.residency = Residency(self.units, options.prefetch, group.device)
        self.executor = self._make_executor()
        own = {group.comm, group.everyone, group.control.communicator}
        ledger = WireLedger([*self.comms.values(), *own])
        self.passes = Passes(
            self.units,
            self.residency,
            self.gradients,
            self.executor,
            group.control,
            ledger=ledger,
            watch=self._watch,
            forget=partial(_forget, self.comms[LaneName.GATHER]),
        )
        self.by_hand = ByHand(self.units, self.residency, self.gradients, self.executor, self.passes)
        # A model that is dropped without close() must not leave threads and hooks behind.
        self._closing = weakref.finalize(self, _release, self.lanes, self.passes.handles)
        if options.nvtx:
            nvtx.enable()

    def _make_executor(self) -> Executor:
        trace = ComputeTrace(self.lanes.compute.clock, self._watch) if self._watch else None
        if self._watch is not None:
            self._watch.clock = self.lanes.compute.clock
        for unit in self.units:
            for flat in unit.flats:
                flat.order = ComputeOrder(self.lanes.compute, trace, unit.name, self.options.nvtx)
        bindings = Bindings(self.units, self.gradients, self.comms[LaneName.GATHER], self.options)
        spec = self.residency.step_spec(self.gradients)
        ranges = ComputeRanges(_compute_range) if self.options.nvtx else None
        return Executor(spec, bindings, self.lanes.compute, self.lanes.communication, trace, ranges)

    @property
    def slots(self) -> SlotMap:
        """Which unit has which memory."""
        return self.residency.slots

    @property
    def plans(self) -> PlanBook:
        """Recorded orders and plans."""
        return self.passes.plans

    @property
    def plan(self) -> Plan | None:
        """The plan of a training step; None until the first one has been recorded."""
        return self.plans.latest("train")

    @property
    def deviations(self) -> int:
        """How often a pass departed from its plan, or needed a gather the plan did not foresee."""
        return self.executor.departures

    @property
    def timeline(self) -> Timeline:
        """What ran when, on which lane.

        Raises:
            StateError: the model was sharded without ``timeline=True``.
        """
        if self._watch is None:
            raise StateError(message("timeline", "be recorded", "timeline=False", "shard the model with timeline=True"))
        return self._watch.timeline()

    @property
    def trace(self) -> ComputeTrace | None:
        """Records work of the compute lane; None when nothing is recorded."""
        return self.executor.trace

    def mark_changed(self) -> None:
        """Say that weights were edited through ``param.data``, which no version counter sees."""
        for unit in self.units:
            for flat in unit.flats:
                flat.mark_changed()

    def discard_gradients(self) -> None:
        """Forget what ``no_sync`` has accumulated: for optimizers whose ``zero_grad`` does not know of it."""
        for param in self.gradients.params:
            param.discard = True

    def memory(self) -> MemoryReport:
        """Bytes by item: predicted by the layout, allocated, and by the stage's formula."""
        comms = {*self.comms.values(), self.group.comm, self.group.everyone}
        scratch = sum(comm.scratch_bytes for comm in comms)
        return memory_report(
            self.units, self.residency.slots, self.gradients, self.options, world=self.group.world, scratch=scratch
        )

    def wire(self) -> WireReport:
        """Bytes this rank sent in the latest training step: counted, by formula, and the difference by item."""
        return wire_report(self.passes.ledger.latest(), self.units, self.plan, self.options, self.group)

    def close(self) -> None:
        """End lane threads; the engine cannot run afterwards."""
        self._closing()


def _forget(gather: Communicator, flat: Flat) -> None:
    """Only one that keeps what it has gathered needs to be told."""
    if isinstance(gather, TwoLevelCommunicator):
        gather.forget(flat.shard)


def _compute_range(kind: str, unit: str) -> nvtx.Scope:
    return nvtx.Scope("compute", unit, phase=kind)


def _release(lanes: backend.Lanes, handles: list[RemovableHandle]) -> None:
    lanes.close()
    for handle in handles:
        handle.remove()
