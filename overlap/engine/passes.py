"""A pass over the model: what compute has come to, and what the schedule does about it.

As the code below meets it (call.py and hooks.py call it, schedule/executor.py carries the plan out):

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
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from overlap import _compat
from overlap.comm.control import ControlChannel
from overlap.engine import hooks
from overlap.engine.gradients import Gradients
from overlap.engine.hooks import Made
from overlap.engine.meanwhile import meanwhile
from overlap.engine.observe import TimelineWatch
from overlap.engine.plans import PlanBook
from overlap.engine.residency import Residency
from overlap.engine.wire import WireLedger
from overlap.nvtx import Scope
from overlap.schedule.executor import Executor
from overlap.schedule.op import ENTRY_OF_EXIT, EXIT_OF_ENTRY, Kind, Position
from overlap.schedule.plan import Plan
from overlap.shard.flat import Flat
from overlap.shard.unit import Unit


class Passes:
    """Forwards and backwards of one model, one pass after another.

    Attributes:
        plans: recorded orders and plans.
        requires_gradient_sync: whether backwards that start from now on reduce.
        requires_all_reduce: whether they sum over copies of the model.
        ledger: told where a pass begins.
        watch: likewise; None records nothing.
        forget: told of flats whose shards change, while no gather is under way.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        residency: Residency,
        gradients: Gradients,
        executor: Executor,
        control: ControlChannel,
        *,
        ledger: WireLedger,
        watch: TimelineWatch | None,
        forget: Callable[[Flat], None],
    ) -> None:
        self._units, self._residency, self._gradients, self._executor = units, residency, gradients, executor
        self._control, self.ledger, self.watch, self._forget = control, ledger, watch, forget
        self._settling: AbstractContextManager[Any] = nullcontext()
        if gradients.options.nvtx:
            self._settling = Scope("host", "", phase="settle")
        self.plans = PlanBook(control)
        self.requires_gradient_sync = self.requires_all_reduce = True
        self.handles = hooks.watch_gradients(self, units)
        self._index = {id(unit): n for n, unit in enumerate(units)}
        self._places = {
            unit: {kind: Position(kind, n) for kind in (*EXIT_OF_ENTRY, *ENTRY_OF_EXIT)} for n, unit in enumerate(units)
        }
        self._forward: list[Unit] = []
        self._backward: list[Unit] = []
        self._suspended: list[Unit] = []
        self._end: weakref.ref[Callable[[], None]] | None = None
        self._mode = ("", 0, "")

    @property
    def running(self) -> bool:
        """Whether a forward or a backward runs."""
        return bool(self._forward) or self._in_backward

    def number_of(self, unit: Unit) -> int:
        """Its place among the units, by which plans and hooks name it."""
        return self._index[id(unit)]

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
            self._executor.reach(self._places[unit][Kind.FORWARD])
            unit.show_working()

    def exit_forward(self, unit: Unit) -> None:
        """A unit's forward has returned."""
        for each in (unit, *reversed(unit.lenders)):
            self._exit(each)
        if not self._forward and not self._in_backward and self._mode[0] == "eval":
            self._executor.settle()
            self._complete_pass()

    def _exit(self, unit: Unit) -> None:
        self._forward.remove(unit)
        if unit in self._forward:
            return
        self._executor.reach(self._places[unit][Kind.FORWARD_END])
        if unit in self._suspended:
            self._suspended.remove(unit)
            self._resume(unit)
        elif unit not in self._backward:  # else this was a recomputation inside its backward
            unit.show_public()
            unit.check_unedited()

    def interrupt(self, unit: Unit) -> None:
        """A unit's forward has raised. Inside backward this may be a recomputation that has all it needs."""
        outermost = self._forward[:1]
        if not self._in_backward and (unit not in self._forward or outermost[0] in (unit, *unit.lenders)):
            self._abandon()
        elif unit in self._forward:  # code around it may catch the error and go on
            while self._forward[-1] is not unit:
                self._exit(self._forward[-1])
            self.exit_forward(unit)

    def _abandon(self) -> None:
        """Leave an unfinished pass so that the next one starts clean."""
        self._forward.clear()
        self._backward.clear()
        self._suspended.clear()
        if self._end is None:
            self._executor.abandon()
        else:
            self._executor.abandon_backward()
        self._gradients.abandon()
        self._end = None
        for unit in self._units:
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
        for unit in self._units:
            unit.check_faces()
            if unit.held:
                unit.check_unedited()
        if thawing := [flat for unit in self._units for flat in unit.thawing]:
            self._thaw(thawing)
        self.refresh()
        self._mode = ("train" if torch.is_grad_enabled() else "eval", self.number_of(entry), method)
        self.ledger.begin(train=self._mode[0] == "train")
        if self.watch is not None:
            self.watch.next_step()
        plan, stale = self._choose_plan()
        self._executor.begin(plan, range(len(self._gradients.buckets)), stale=stale)

    def refresh(self) -> None:
        """Bring what gathers send up to date. A gather still on its way, of a pass that failed say, would send both."""
        self._residency.refresh(self._before_change)

    def _before_change(self, flat: Flat) -> None:
        self._executor.stop_gathers()
        self._forget(flat)

    def _thaw(self, flats: Sequence[Flat]) -> None:
        """Parameters that were sharded frozen are to be trained: on all ranks, or on none. A collective."""
        names = ", ".join(param.fqn for flat in flats for param in flat.params if param.public.requires_grad)
        self._control.agree("parameters to unfreeze", names)
        known = {id(param) for param in self._gradients.params}
        for flat in flats:
            flat.check_trainable()
        for flat in flats:
            flat.thaw()
        self._gradients.take_in(self._units)
        self.handles += hooks.watch_gradients(self, self._units, known)
        self._executor.renew(self._residency.step_spec(self._gradients))
        self.plans.forget("train")

    def _choose_plan(self) -> tuple[Plan | None, bool]:
        if not self._gathers and self._mode[0] == "eval":
            # Nothing to plan, and an evaluation on one rank alone must not wait for others.
            return None, self._residency.begin(self._residency.residents)
        order = self.plans.settle(self._mode)
        # Only a step of the whole model tells the order, not one of a block alone.
        whole_step = order is not None and self._mode == ("train", 0, "") and not self._residency.held
        if order is not None and whole_step and self._residency.follow(order):
            self._executor.relocate(self._residency.step_spec(self._gradients))
        residency, spec = self._residency, self._executor.spec
        residents = residency.residents
        stale = residency.begin(residents)
        fresh = not stale and bool(residents)
        plan = self.plans.plan(self._mode, spec, prefetch=residency.prefetch, stale=not fresh, variant=residency.held)
        return plan, stale

    def _complete_pass(self) -> None:
        if self.plans.known(self._mode):
            return
        packs = any(position.kind is Kind.PACK for position in self._executor.record)
        if self._mode[0] == "train" and self._gradients.reducing and self._gradients.buckets and not packs:
            return  # a gradient of an input alone: no order to learn from it
        if self._gathers or self._mode[0] == "train":
            self.plans.note(self._mode, self._executor.record)

    @property
    def _gathers(self) -> bool:
        """Whether any unit has parameters to gather; none has at stage 0."""
        return bool(self._residency.slots.slots)

    # -- backward ----------------------------------------------------------------------------------------------

    def backward_trigger(self, unit: Unit) -> Callable[..., None]:
        """What autograd calls when the gradient of a unit's output is there."""
        return hooks.backward_trigger(
            self, self.number_of(unit), Made(self._residency.epoch, self._residency.generation)
        )

    def backward_reached(self, number: int, made: Made) -> None:
        """A unit's backward is about to run; its other outputs may tell so again."""
        unit = self._units[number]
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
        self._executor.reach(self._places[unit][Kind.BACKWARD])
        self._gradients.note_backward(unit)
        unit.show_working(watch=False)  # backward reads them

    def _check_graph(self, unit: Unit, made: Made) -> None:
        """Refuse a graph whose saved views of parameters no longer show what its forward saw."""
        if unit.slot is None:
            return
        if made.epoch != self._residency.epoch:
            hooks.refuse_graph(unit, "one from before the slots were laid out along the order of the first step")
        if made.generation != self._residency.generation or unit.changed():
            hooks.refuse_graph(unit, "weights that have changed since its forward")
        if torch.is_grad_enabled() and not unit.resident:
            hooks.refuse_graph(unit, "create_graph=True, whose second backward nobody announces (stage 2 can)")

    def gradient_arrived(self, number: int, param: int) -> None:
        """Autograd has accumulated the gradient of a parameter."""
        unit = self._units[number]
        if unit not in self._backward and unit.slot is not None and not unit.resident:
            hooks.refuse_unseen(unit)
        end = self._end  # as ``_in_backward``, without a call for every parameter
        if end is None or end() is None:  # a second backward through create_graph: no trigger on its way, none needed
            self._open_backward()
        bucket = self._gradients.arrived(unit.params[param])
        if bucket is not None:
            self._executor.ready(bucket)

    @property
    def _in_backward(self) -> bool:
        """Whether a backward runs. Autograd alone holds its end callback, and drops it when it fails, too."""
        return self._end is not None and self._end() is not None

    def _open_backward(self) -> None:
        self.recover()
        self._suspended.clear()
        # First the executor: it waits for lanes that a failed backward may have left at work.
        self._executor.open_backward(reduce=self.requires_gradient_sync, replicate=self.requires_all_reduce)
        self._gradients.open_backward(reducing=self.requires_gradient_sync, replicating=self.requires_all_reduce)
        for bucket in self._gradients.frozen_buckets:
            self._executor.expect_nothing(bucket)
        end = partial(self.finish_backward)
        self._end = weakref.ref(end)
        _compat.at_end_of_backward(end)

    def finish_backward(self) -> None:
        """Autograd is through."""
        for unit in reversed(self._backward.copy()):
            self._leave(unit)
        self._suspended.clear()
        with self._settling:
            again = self._settle() if self._gradients.reducing else sorted(self._gradients.late)
        if self._gradients.any_used:
            self._executor.flush()
        for bucket in again:
            self._executor.repeat(bucket)
        self._executor.finish()
        if self._gradients.reducing and self._gradients.replicating:
            self._gradients.publish()
        else:
            self._gradients.restore()
        for unit in self._units:
            unit.show_public()
        self._end = None
        self._complete_pass()

    def _settle(self) -> list[int]:
        """Agree on facts; the buckets that must go once more. Another rank may be held up by what has not left here."""
        if self._gradients.options.lanes == "inline":
            self._executor.flush()
        if not self._executor.holding or not self._gradients.any_used:
            return self._gradients.settle(self._control)
        return meanwhile(
            partial(self._gradients.settle, self._control), self._executor.flush, self._gradients.options.timeout_s
        )

    def _leave_leaves(self) -> None:
        for unit in [unit for unit in self._backward if unit.leaf]:
            self._leave(unit)

    def _leave(self, unit: Unit) -> None:
        if unit in self._backward:
            self._backward.remove(unit)
            self._executor.reach(self._places[unit][Kind.BACKWARD_END])
            if unit not in self._forward:
                unit.show_public()

    def _suspend_leaves(self) -> None:
        """A recomputation enters another leaf: those in backward are done, or are about to be recomputed themselves."""
        self._suspended += [unit for unit in self._backward if unit.leaf]
        self._leave_leaves()

    def _resume(self, unit: Unit) -> None:
        """A suspended leaf has been recomputed: its backward goes on."""
        self._reach_backward(unit)
