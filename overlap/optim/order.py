"""Work of the optimizer in the order of compute: norm and update are jobs of the compute lane like any other.

On CUDA that is the current stream. Their spans and NVTX ranges come from the lane, as everyone's do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from overlap.nvtx import Scope
from overlap.schedule.lanes import ComputeLane, Job
from overlap.schedule.trace import ComputeTrace


@dataclass(frozen=True, slots=True)
class ComputeOrder:
    """Submits a unit's work to the compute lane; a flat carries one once its model has an engine."""

    compute: ComputeLane
    trace: ComputeTrace | None
    unit: str
    nvtx: bool

    def __call__(self, kind: str, nbytes: int, run: Callable[[], None]) -> None:
        """Run behind everything submitted before.

        Args:
            kind: ``norm`` or ``update``.
            nbytes: of memory that it reads and writes.
            run: the work.
        """
        scope = Scope("update", self.unit, phase=kind, bytes=nbytes) if self.nvtx else None
        if self.trace is not None:
            self.trace.pause()
        self.compute.submit(Job(kind, kind, self.unit, nbytes, run, scope), ())
        if self.trace is not None:
            self.trace.resume()
