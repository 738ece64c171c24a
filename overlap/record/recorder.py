"""Recording inside one process: from one optimizer step to another, whoever's optimizer it is.

step     1    2    3 |  4    5    6    7    8  | 9 ...
skip 3               | ==== recorded, 5 ====== | trace written, program goes on
"""

import atexit
import os
from types import ModuleType
from typing import Any, Protocol

from overlap import nvtx
from overlap.record.ranges import listener_for
from overlap.record.settings import VARIABLE, Orders


class Recording(Protocol):
    """A tool between start and stop."""

    def step(self) -> None:
        """A step ends and another one begins."""

    def stop(self) -> None:
        """Recording ends; what was recorded is written."""


class Recorder:
    """Counts the steps of the first optimizer that steps; the others belong to the same steps."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._seen = 0
        self._counted: int | None = None
        self._recording: Recording | None = None

    def stepped(self, optimizer: object, *_: Any) -> None:
        """An optimizer has stepped: torch calls this after every step of every one."""
        if self._counted is None:
            self._counted = id(optimizer)
        if self._counted != id(optimizer):
            return
        self._seen += 1
        recorded = self._seen - self._orders.skip
        if recorded == 0:
            self._recording = start(self._orders)
        elif self._recording is not None:
            if recorded < self._orders.steps:
                self._recording.step()
            else:
                self.finish()

    def finish(self) -> None:
        """Write what there is; a program that ends early is recorded as far as it came."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.stop()


def prepare(optimizers: ModuleType) -> None:
    """Called once ``torch.optim.optimizer`` has been imported.

    Args:
        optimizers: that module; at this point ``torch.optim`` itself is not complete.
    """
    orders = Orders.from_text(os.environ[VARIABLE])
    recorder = Recorder(orders)
    optimizers.register_optimizer_step_post_hook(recorder.stepped)
    atexit.register(recorder.finish)
    nvtx.demand(listener_for(orders.tool))  # engines ask when they are made, before the first step


def start(orders: Orders) -> Recording:
    """Start the tool; imported late, for preparing happens while torch is being imported."""
    if orders.tool == "nsys":
        from overlap.record.nsys_tool import CudaMarks, NsysRecording, NvtxMarks

        return NsysRecording(CudaMarks() if orders.cuda else NvtxMarks())
    from overlap.record.torch_tool import TorchRecording

    return TorchRecording(orders.out)
