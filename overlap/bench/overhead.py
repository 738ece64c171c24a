"""What one call costs before its first byte: ops on next to nothing, called in a row."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from overlap import ops
from overlap.bench.extension import extension_cost
from overlap.bench.faces import brings, load_face
from overlap.bench.rows import OPS
from overlap.bench.timing import Run, interleave

ELEMENTS = 256
CALLS = 500
ROUNDS = 11


@dataclass(frozen=True, kw_only=True)
class CallCost:
    """Of one op on one face."""

    op: str
    face: str
    elements: int
    face_ns: float
    """Median of a call of the face's own function."""
    public_ns: float | None
    """Median of a call through ``overlap.ops``, which chooses the face (and checks, where the face does not).

    None where it chooses another face here.
    """
    extension_ns: float | None
    """Of a call of the C++ extension alone, on empty tensors; None for other faces and where it is not measured."""


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


def call_costs(names: Sequence[str], faces: Sequence[str], device: torch.device) -> Iterator[CallCost]:
    """Yield the cost of each op on each of ``faces`` that brings it, in bf16, of its first case."""
    clock, in_use = CallClock(device), ops.face_name(device)
    for name, face in itertools.product(names, faces):
        if brings(load_face(face), name):
            yield _call_cost(name, face, device, clock, public=face == in_use)


def _call_cost(op: str, face: str, device: torch.device, clock: CallClock, *, public: bool) -> CallCost:
    case = next(OPS[op](ELEMENTS, torch.bfloat16, device))
    runs: list[Run] = [partial(case.call, load_face(face)), *([case.public] if public else [])]
    own, *through = (1e9 * median(times) for times in interleave(runs, clock, rounds=ROUNDS, budget_s=10))
    extension = extension_cost(op) if face == "native" else None
    return CallCost(
        op=op,
        face=face,
        elements=case.elements,
        face_ns=own,
        public_ns=through[0] if through else None,
        extension_ns=None if extension is None else 1e9 * extension,
    )
