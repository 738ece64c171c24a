"""Turns: in every round each contender takes its steps, all ranks together, in an order that rotates."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from overlap.bench.netlab.traffic import traffic
from overlap.bench.step.contenders.contender import Contender, Spec
from overlap.bench.step.workload import Workload


@dataclass
class Runner:
    """One contender on one rank: where it is in the data, and what was seen of it."""

    spec: Spec
    contender: Contender
    workload: Workload
    per_rank: int
    """Sequences per step."""
    interface: str
    losses: list[Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Per step, a figure per round."""
    sent: list[int] = field(default_factory=list)
    """Bytes per step by the contender's own count, a figure per round."""
    kernel_sent: list[int] = field(default_factory=list)
    """Bytes per step through the interface, a figure per round."""

    def step(self) -> None:
        """Take the next step."""
        self.losses.append(self.contender.step(*self.workload.batch(len(self.losses), self.per_rank)))

    def turn(self, steps: int) -> None:
        """Take some steps between two barriers and note what they cost."""
        dist.barrier()
        traffic_before, own_before = traffic(self.interface), self._sent()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        dist.barrier()
        self.seconds.append((time.perf_counter() - start) / steps)
        self.kernel_sent.append((traffic(self.interface) - traffic_before).sent // steps)
        self.sent.append((self._sent() - own_before) // steps)

    def _sent(self) -> int:
        return self.contender.sent() if self.contender.sent is not None else 0


def take_turns(runners: Sequence[Runner], *, rounds: int, steps: int, tell: Callable[[str], None]) -> None:
    """Let all take turns; ``tell`` hears of each round between two turns."""
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        first = number % len(runners)
        for runner in (*runners[first:], *runners[:first]):
            runner.turn(steps)
