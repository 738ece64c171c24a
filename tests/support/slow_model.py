"""A chain of blocks whose compute takes a known time, over communicators whose transfers do."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import overlap
from overlap.comm.shaped import ShapedCommunicator
from overlap.engine import backend
from overlap.engine.build import ShardGroup
from overlap.profiling.metrics import measure
from overlap.schedule.op import LaneName

BLOCKS = 5
WIDTH = 128
FORWARD_S, BACKWARD_S = 0.03, 0.045
TRANSFER_S = 0.022
# One gather or reduction of a block moves WIDTH * WIDTH * 4 / 2 bytes on 2 ranks.
BYTES_PER_SECOND = WIDTH * WIDTH * 4 / 2 / TRANSFER_S
COMPUTE_S = BLOCKS * (FORWARD_S + BACKWARD_S)
# Stage 3 gathers once more for backward, but for the two blocks that are still in their slots.
COMMUNICATION_S = {2: 2 * BLOCKS * TRANSFER_S, 3: (3 * BLOCKS - 2) * TRANSFER_S}


class Pause(torch.autograd.Function):
    """Identity that takes its time in both directions; sleeping releases the GIL, as real kernels do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        time.sleep(BACKWARD_S)
        return grad


class Block(nn.Module):
    """One matrix and a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + Pause.apply(self.linear(x))


class Chain(nn.Module):
    """Blocks one behind another; the root owns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@dataclass(frozen=True)
class Timing:
    """Median seconds per step, and the engine's own account of a step."""

    step_s: float
    comm_s: float
    exposed_s: float
    ratio: float | None


def time_steps(stage: int, lanes: str, steps: int = 5) -> Timing:
    """Train the chain over slow communicators and time it. Runs on a rank."""
    torch.manual_seed(0)
    with _slow_network():
        model = overlap.shard(Chain(), stage=stage, unit=Block, lanes=lanes, prefetch=1, timeline=True)
        optimizer = overlap.AdamW(model.parameters())
        seconds = [_timed_step(model, optimizer) for _ in range(steps)]
    engine = overlap.engine_of(model)
    account = measure(engine.timeline.of_step(engine.timeline.steps()[-1]))
    engine.close()
    return Timing(
        median(seconds[2:]),
        account.comm_ns / 1e9,
        account.exposed_ns / 1e9,
        account.ratio,
    )


def _timed_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    start = time.perf_counter()
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start


@contextmanager
def _slow_network() -> Iterator[None]:
    really_open = backend.open_communicators

    def open_communicators(group: ShardGroup) -> dict[LaneName, Any]:
        return {
            name: ShapedCommunicator(comm, bytes_per_second=BYTES_PER_SECOND)
            for name, comm in really_open(group).items()
        }

    with patch.object(backend, "open_communicators", open_communicators):
        yield
