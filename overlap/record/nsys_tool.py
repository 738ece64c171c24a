"""Nsight Systems around some steps of one rank: it waits for ``cudaProfilerStart`` (``--capture-range``)."""

import torch


class NsysRecording:
    """Captures from construction on; steps are NVTX ranges ``ProfilerStep#n``."""

    def __init__(self) -> None:
        self._number = 0
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        self._open()

    def step(self) -> None:
        """Mark a step."""
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
        self._number += 1
        self._open()

    def stop(self) -> None:
        """Let what was launched finish, and end the capture."""
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]

    def _open(self) -> None:
        torch.cuda.nvtx.range_push(f"ProfilerStep#{self._number}")  # type: ignore[no-untyped-call]
