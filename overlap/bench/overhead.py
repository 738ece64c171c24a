"""What one call costs before its first byte: ops on next to nothing, called in a row."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from overlap import ops
from overlap.bench.faces import load_face
from overlap.bench.rows import OPS
from overlap.bench.timing import Run, interleave

ELEMENTS = 256
CALLS = 500
ROUNDS = 11


@dataclass(frozen=True)
class CallCost:
    """Of one op on the face in use."""

    op: str
    face: str
    elements: int
    face_ns: float
    """Median of a call of the face's own function."""
    public_ns: float
    """Median of a call through ``overlap.ops``, which chooses the face (and checks, where the face does not)."""


class CallClock:
    """Host time of ``CALLS`` calls; on CUDA they are only issued, and waited for outside of the time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, run: Run) -> float:
        """Run many times and return the seconds of one."""
        begin = time.perf_counter()
        for _ in range(CALLS):
            run()
        end = time.perf_counter()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return (end - begin) / CALLS


def call_costs(names: Sequence[str], device: torch.device) -> Iterator[CallCost]:
    """Yield the cost of each op on the face in use for ``device``, in bf16, of its first case."""
    face = load_face(ops.face_name(device))
    clock = CallClock(device)
    for name in names:
        case = next(OPS[name](ELEMENTS, torch.bfloat16, device))
        runs: list[Run] = [partial(case.call, face), case.public]
        own, public = interleave(runs, clock, rounds=ROUNDS, budget_s=10)
        yield CallCost(name, ops.face_name(device), case.elements, 1e9 * median(own), 1e9 * median(public))
