"""The engine: units + plan + hooks = a training step.

One pass, as the code below meets it (module.py and hooks.py call it, schedule/executor.py carries the plan out):

    enter_forward(root)      begin the pass: refresh shards, choose the plan
    enter_forward(block)     executor: issue gathers ahead, wait for this unit's; show full parameters
    exit_forward(block)      executor: its slot may be refilled; show sharded parameters
    backward_reached(block)  as enter_forward, when the gradient of the block's output is there; ends that of the last
    gradient_arrived(param)  last gradient of a bucket: pack and reduce
    finish_backward()        reduce the rest, wait, show gradients
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.utils.hooks import RemovableHandle

from overlap import _compat, nvtx
from overlap.config import ShardOptions
from overlap.engine import backend, hooks
from overlap.engine.bindings import Bindings
from overlap.engine.build import ShardGroup
from overlap.engine.by_hand import UnshardHandle, refuse_inside
from overlap.engine.gradients import Gradients
from overlap.engine.hooks import Made
from overlap.engine.memory import MemoryReport, memory_report
from overlap.engine.observe import TimelineWatch
from overlap.engine.order import ComputeOrder
from overlap.engine.plans import PlanBook
from overlap.engine.residency import Residency
from overlap.engine.slots import SlotMap
from overlap.engine.ties import find_lenders
from overlap.engine.wire import WireLedger, WireReport, wire_report
from overlap.errors import StateError, message
from overlap.profiling.timeline import Timeline
from overlap.schedule.executor import Executor
from overlap.schedule.op import Kind, LaneName, Position
from overlap.schedule.plan import Plan
from overlap.schedule.spec import StepSpec
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
        self.units, self.group, self.options = tuple(units), group, options
        find_lenders(units)
        self.requires_gradient_sync = self.requires_all_reduce = True
        self._index = {id(unit): n for n, unit in enumerate(units)}
        self._watch = TimelineWatch(group.rank) if options.timeline else None
        self.comms = backend.open_communicators(group)
        self.lanes = backend.open_lanes(group, options, self._watch)
        self.gradients = Gradients(units, options, self.comms[LaneName.REDUCE], self.comms.get(LaneName.REPLICATE))
        trace = ComputeTrace(self.lanes.compute.clock, self._watch) if self._watch else None
        self.residency = Residency(self.units, options.prefetch, group.device)
        bindings = Bindings(self.units, self.gradients, self.comms[LaneName.GATHER], options)
        self.executor = Executor(self._spec(), bindings, self.lanes.compute, self.lanes.communication, trace)
        self.plans = PlanBook(group.control)
        own = {group.comm, group.everyone, group.control.communicator}
        self.ledger = WireLedger([*self.comms.values(), *own])
        self._forward: list[Unit] = []
        self._backward: list[Unit] = []
        self._suspended: list[Unit] = []
        self._end: weakref.ref[Callable[[], None]] | None = None
        self._mode = ("", 0, "")
        self.summoned = False  # full plain parameters are registered, and nothing is to be done
        if self._watch is not None:
            self._watch.clock = self.lanes.compute.clock
        # A model that is dropped without close() must not leave threads and hooks behind.
        self._handles = hooks.watch_gradients(self, self.units)
        self._closing = weakref.finalize(self, _release, self.lanes, self._handles)
        for unit in self.units:
            for flat in unit.flats:
                flat.order = ComputeOrder(self.lanes.compute, trace, unit.name, options.nvtx)
        if options.nvtx:
            nvtx.enable()

    # -- forward -----------------------------------------------------------------------------------------------

    def enter_forward(self, unit: Unit, method: str = "") -> None:
        """A unit's forward, or another method of it, is about to run."""
        if not self._in_backward:
            if not self._forward:
                self._begin_pass(unit, method)
        elif unit.leaf and unit not in self._backward:
            self._suspend_leaves()
        for each in (*unit.lenders, unit):
            self._enter(each)

    def _enter(self, unit: Unit) -> None:
        """A lender may be in use already, by its own module or for another borrower."""
        self._forward.append(unit)
        if self._forward.count(unit) == 1:
            self.executor.reach(self._at(Kind.FORWARD, unit))
        unit.show_working()

    def exit_forward(self, unit: Unit) -> None:
        """A unit's forward has returned."""
        for each in (unit, *reversed(unit.lenders)):
            self._exit(each)
        if not self._forward and not self._in_backward and self._mode[0] == "eval":
            self._complete_pass()

    def _exit(self, unit: Unit) -> None:
        self._forward.remove(unit)
        if unit in self._forward:
            return
        self.executor.reach(self._at(Kind.FORWARD_END, unit))
        unit.check_unedited()
        if unit in self._suspended:
            self._suspended.remove(unit)
            self._resume(unit)
        elif unit not in self._backward:  # else this was a recomputation inside its backward
            unit.show_public()

    def interrupt(self, unit: Unit) -> None:
        """A unit's forward has raised. Inside backward this may be a recomputation that has all it needs."""
        if self._in_backward:
            self.exit_forward(unit)
        else:
            self._abandon()

    def _abandon(self) -> None:
        """Leave an unfinished pass so that the next one starts clean."""
        self._forward.clear()
        self._backward.clear()
        self._suspended.clear()
        self.gradients.abandon()
        self._end = None
        for unit in self.units:
            unit.show_public()

    def recover(self) -> None:
        """If a backward has failed, leave it: parameters show their public faces again."""
        if self._end is not None and not self._in_backward:
            self._abandon()

    def reset(self) -> None:
        """Leave a forward or backward that has raised."""
        if not self._in_backward:
            self._abandon()

    def _begin_pass(self, entry: Unit, method: str) -> None:
        self.recover()
        for unit in self.units:
            unit.check_faces()
        if thawing := [flat for unit in self.units for flat in unit.thawing]:
            self._thaw(thawing)
        self.residency.refresh()
        self._mode = ("train" if torch.is_grad_enabled() else "eval", self._index[id(entry)], method)
        self.ledger.begin(train=self._mode[0] == "train")
        if self._watch is not None:
            self._watch.next_step()
        plan, stale = self._choose_plan()
        self.executor.begin(plan, range(len(self.gradients.buckets)), stale=stale)

    def _thaw(self, flats: Sequence[Flat]) -> None:
        """Parameters that were sharded frozen are to be trained: on all ranks, or on none. A collective."""
        names = ", ".join(param.fqn for flat in flats for param in flat.params if param.public.requires_grad)
        self.group.control.agree("parameters to unfreeze", names)
        known = {id(param) for param in self.gradients.params}
        for flat in flats:
            flat.thaw()
        self.gradients.take_in(self.units)
        self._handles += hooks.watch_gradients(self, self.units, known)
        self.executor.renew(self._spec())
        self.plans.forget("train")

    def _choose_plan(self) -> tuple[Plan | None, bool]:
        if not self._gathers and self._mode[0] == "eval":
            # Nothing to plan, and an evaluation on one rank alone must not wait for others.
            return None, self.residency.begin()
        order = self.plans.settle(self._mode)
        # Only a step of the whole model tells the order, not one of a block alone.
        if order is not None and self._mode == ("train", 0, "") and self.residency.follow(order):
            self.executor.relocate(self._spec())
        residency, spec = self.residency, self.executor.spec
        stale = residency.begin()
        fresh = not stale and bool(residency.residents)
        plan = self.plans.plan(self._mode, spec, prefetch=residency.prefetch, stale=not fresh, variant=residency.held)
        return plan, stale

    def _complete_pass(self) -> None:
        if self._gathers or self._mode[0] == "train":
            self.plans.note(self._mode, self.executor.record)

    @property
    def _gathers(self) -> bool:
        """Whether any unit has parameters to gather; none has at stage 0."""
        return bool(self.residency.slots.slots)

    # -- backward ----------------------------------------------------------------------------------------------

    def backward_trigger(self, unit: Unit) -> Callable[..., None]:
        """What autograd calls when the gradient of a unit's output is there."""
        return hooks.backward_trigger(
            self, self._index[id(unit)], Made(self.residency.epoch, self.residency.generation)
        )

    def backward_reached(self, number: int, made: Made) -> None:
        """A unit's backward is about to run; its other outputs may tell so again."""
        unit = self.units[number]
        if not self._in_backward:
            self._open_backward()
        if unit in self._backward:
            return
        if unit.leaf:
            # Autograd runs in the reverse order of forward, so the leaf before this one has ended. Its last gradient
            # would be too early a sign: frozen parameters may still be read for the gradient of its input.
            self._leave_leaves()
        for each in (*unit.lenders, unit):
            if each not in self._backward:
                self._check_graph(each, made)
                self._reach_backward(each)

    def _reach_backward(self, unit: Unit) -> None:
        self._backward.append(unit)
        self.executor.reach(self._at(Kind.BACKWARD, unit))
        unit.show_working()

    def _check_graph(self, unit: Unit, made: Made) -> None:
        """Refuse a graph whose saved views of parameters no longer show what its forward saw."""
        if unit.slot is None:
            return
        if made.epoch != self.residency.epoch:
            hooks.refuse_graph(unit, "one from before the slots were laid out along the order of the first step")
        if made.generation != self.residency.generation or any(flat.changed() for flat in unit.flats):
            hooks.refuse_graph(unit, "weights that have changed since its forward")
        if torch.is_grad_enabled() and not unit.resident:
            hooks.refuse_graph(unit, "create_graph=True, whose second backward nobody announces (stage 2 can)")

    def gradient_arrived(self, number: int, param: int) -> None:
        """Autograd has accumulated the gradient of a parameter."""
        unit = self.units[number]
        if unit.slot is not None and not unit.resident and unit not in self._backward:
            hooks.refuse_unseen(unit)
        if not self._in_backward:  # a second backward through create_graph: no trigger on its way, none needed
            self._open_backward()
        bucket = self.gradients.arrived(unit.params[param])
        if bucket is not None:
            self.executor.ready(bucket)

    @property
    def _in_backward(self) -> bool:
        """Whether a backward runs. Autograd alone holds its end callback, and drops it when it fails, too."""
        return self._end is not None and self._end() is not None

    def _open_backward(self) -> None:
        self.recover()
        self._suspended.clear()
        self.gradients.open_backward(reducing=self.requires_gradient_sync, replicating=self.requires_all_reduce)
        self.executor.open_backward(reduce=self.requires_gradient_sync, replicate=self.gradients.replicating)
        end = partial(self.finish_backward)
        self._end = weakref.ref(end)
        _compat.at_end_of_backward(end)

    def finish_backward(self) -> None:
        """Autograd is through."""
        for unit in reversed(self._backward.copy()):
            self._leave(unit)
        self._suspended.clear()
        reducing = self.gradients.reducing
        again = self.gradients.settle(self.group.control) if reducing else sorted(self.gradients.late)
        if self.gradients.any_used:
            self.executor.flush()
        for bucket in again:
            self.executor.repeat(bucket)
        self.executor.finish()
        if reducing and self.gradients.replicating:
            self.gradients.publish()
        else:
            self.gradients.restore()
        for unit in self.units:
            unit.show_public()
        self._end = None
        self._complete_pass()

    def _leave_leaves(self) -> None:
        for unit in [unit for unit in self._backward if unit.leaf]:
            self._leave(unit)

    def _leave(self, unit: Unit) -> None:
        if unit in self._backward:
            self._backward.remove(unit)
            self.executor.reach(self._at(Kind.BACKWARD_END, unit))
            if unit not in self._forward:
                unit.show_public()

    def _suspend_leaves(self) -> None:
        """A recomputation enters another leaf: those in backward are done, or are about to be recomputed themselves."""
        self._suspended += [unit for unit in self._backward if unit.leaf]
        self._leave_leaves()

    def _resume(self, unit: Unit) -> None:
        """A suspended leaf has been recomputed: its backward goes on."""
        self._reach_backward(unit)

    # -- full parameters by hand -------------------------------------------------------------------------------

    def unshard(self, unit: Unit) -> UnshardHandle:
        """Gather a unit between passes; it stays until ``reshard``. A collective."""
        self._between_passes("unshard")
        self.residency.refresh()
        if not unit.held:
            moves = unit.shares_slot
            unit.held = unit.own_slot = True
            self._keep_otherwise(moves)
        self._fetch(self._index[id(unit)])
        return UnshardHandle(partial(self._show_held, unit))

    def _fetch(self, number: int) -> None:
        if self.units[number].slot is not None:
            self.executor.fetch(number)
        self.residency.fetched(number)

    def _show_held(self, unit: Unit) -> None:
        if unit.held:
            self.executor.arrive(self._index[id(unit)])
            unit.show_working()

    def reshard(self, unit: Unit) -> None:
        """Let go of what ``unshard`` has brought."""
        self._between_passes("reshard")
        if unit.held:
            unit.held = False
            unit.show_public()
            self._keep_otherwise(moves=False)
            self.residency.dropped(self._index[id(unit)])
            unit.check_unedited()

    def begin_summon(self) -> None:
        """Full plain parameters are about to be registered by others."""
        self._between_passes("summon_full_params")
        if self.summoned or self.residency.held:
            got = "a second call inside" if self.summoned else "units that unshard() holds"
            raise StateError(message("summon_full_params()", "find sharded parameters", got, "leave that first"))
        self.summoned = True

    def end_summon(self) -> None:
        """Back to the public faces."""
        self.summoned = False
        for unit in self.units:
            unit.show_public()

    def keep_otherwise(self) -> None:
        """Units have been told to keep their parameters for longer or for shorter: lay out slots anew."""
        self._between_passes("set_reshard_after_forward")
        self._keep_otherwise(moves=True)

    def gather_ahead(self, distance: int) -> None:
        """Gather at least so many units ahead from now on."""
        self._between_passes("set_modules_to_forward_prefetch")
        if distance > self.residency.prefetch:
            self.residency.prefetch = distance
            self._keep_otherwise(moves=True)

    def _keep_otherwise(self, moves: bool) -> None:
        if moves:
            self.residency.place()
            self.executor.relocate(self._spec())
            for number in sorted(self.residency.held):  # what is shown must not be an empty slot
                self._fetch(number)
                self.executor.arrive(number)
        else:
            self.executor.renew(self._spec())

    def _between_passes(self, method: str) -> None:
        self.recover()
        if self._forward or self._in_backward:
            refuse_inside(method)

    # -- what others ask ---------------------------------------------------------------------------------------

    @property
    def slots(self) -> SlotMap:
        """Which unit has which memory."""
        return self.residency.slots

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
        return wire_report(self.ledger.latest(), self.units, self.plan, self.options, self.group)

    def close(self) -> None:
        """End lane threads; the engine cannot run afterwards."""
        self._closing()

    # -- inside ------------------------------------------------------------------------------------------------

    def _at(self, kind: Kind, unit: Unit) -> Position:
        return Position(kind, self._index[id(unit)])

    def _spec(self) -> StepSpec:
        return StepSpec(self.residency.specs(), self.gradients.specs())


def _release(lanes: backend.Lanes, handles: list[RemovableHandle]) -> None:
    lanes.close()
    for handle in handles:
        handle.remove()
