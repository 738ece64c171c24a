"""Run a plan on virtual clocks: what a step would take, given what each op costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from overlap.schedule.op import LaneName, Op
from overlap.schedule.plan import Plan


@dataclass(frozen=True, slots=True)
class SimulatedOp:
    """One op with its virtual start and end, in the unit of the cost function."""

    op: Op
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated pass."""

    ops: tuple[SimulatedOp, ...]

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max((done.end for done in self.ops), default=0.0)

    def busy(self, lane: LaneName) -> float:
        """Summed op time of one lane."""
        return sum(done.end - done.start for done in self.ops if done.op.lane is lane)


def simulate(plan: Plan, cost: Callable[[Op], float]) -> Simulation:
    """Start each op when its lane is free and its waits are true.

    Args:
        plan: a valid plan.
        cost: duration of one op, in any unit; lanes do not slow each other down.
    """
    free: dict[LaneName, float] = {}
    true_at: dict[str, float] = {}
    done = []
    for op in plan.ops:
        start = max([free.get(op.lane, 0.0), *(true_at[event] for event in op.waits)])
        end = start + cost(op)
        free[op.lane] = true_at[op.records] = end
        done.append(SimulatedOp(op, start, end))
    return Simulation(tuple(done))
