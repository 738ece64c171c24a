"""Recorded orders and the plans made from them, the same on every rank."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from overlap.comm.control import ControlChannel
from overlap.schedule.op import Kind, Position
from overlap.schedule.plan import Plan
from overlap.schedule.planner import make_plan
from overlap.schedule.spec import StepSpec
from overlap.schedule.validate import validate

Mode = tuple[str, int, str]
"""``train`` or ``eval``, the index of the unit that the pass enters first, and by which method if not by forward."""


class PlanBook:
    """One record per mode; one plan per mode and state of the resident parameters."""

    def __init__(self, control: ControlChannel) -> None:
        self._control = control
        self._candidates: dict[Mode, tuple[Position, ...]] = {}
        self._records: dict[Mode, tuple[Position, ...]] = {}
        self._plans: dict[tuple[Mode, bool, Hashable], Plan] = {}
        self._latest: dict[str, Plan] = {}

    def known(self, mode: Mode) -> bool:
        """Whether a pass of this mode has been recorded."""
        return mode in self._records or mode in self._candidates

    def note(self, mode: Mode, record: Sequence[Position]) -> None:
        """Keep the order of a complete pass."""
        if not self.known(mode):
            self._candidates[mode] = tuple(record)

    def settle(self, mode: Mode) -> tuple[int, ...] | None:
        """Adopt rank 0's record of a mode that was noted since; its order of forwards, or None if nothing is new.

        A collective when there is something to settle: which all ranks find at the same pass.
        """
        record = self._candidates.pop(mode, None)
        if record is None:
            return None
        plain = [(str(position.kind), position.unit) for position in record]
        first = self._control.gather_object(plain)[0]
        self._records[mode] = tuple(Position(Kind(kind), unit) for kind, unit in first)
        forwards = [unit for kind, unit in first if kind == Kind.FORWARD]
        return tuple(dict.fromkeys(forwards))

    def forget(self, kind: str) -> None:
        """Record modes of a kind (``train``) anew: what they do has changed."""
        for book in (self._records, self._candidates):
            for mode in [mode for mode in book if mode[0] == kind]:
                del book[mode]
        self._latest.pop(kind, None)

    def plan(self, mode: Mode, spec: StepSpec, *, prefetch: int, stale: bool, variant: Hashable = None) -> Plan | None:
        """The plan of a mode; None before it is recorded. The first call for a new one is a collective.

        Args:
            mode: of the pass.
            spec: units and buckets.
            prefetch: units gathered ahead.
            stale: as ``make_plan``.
            variant: tells apart specs that take turns, so that each keeps its plan.

        Raises:
            DesyncError: the ranks' plans differ.
        """
        record = self._records.get(mode)
        if record is None:
            return None
        plan = self._plans.get((mode, stale, variant))
        if plan is None or plan.spec != spec or plan.prefetch != prefetch:
            plan = make_plan(spec, record, mode=mode[0], prefetch=prefetch, stale=stale)
            validate(plan)
            self._control.agree("plan", plan.hash)
            self._plans[mode, stale, variant] = plan
        self._latest[mode[0]] = plan
        return plan

    def latest(self, mode: str) -> Plan | None:
        """The plan last used for a mode."""
        return self._latest.get(mode)
