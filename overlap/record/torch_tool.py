"""torch.profiler in one rank: a gzipped Chrome trace in the folder of the recording."""

import os
from pathlib import Path

import torch.distributed as dist
from torch.profiler import ProfilerAction, profile, supported_activities

from overlap._compat import profile_all_threads


class TorchRecording:
    """Records from construction on; modules are named, so that kernels can be given to them."""

    def __init__(self, out: str) -> None:
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else int(os.environ.get("RANK", "0"))
        self._file = Path(out) / f"rank{rank}.json.gz"
        self._profile = profile(
            activities=supported_activities(),  # type: ignore[no-untyped-call]
            schedule=lambda _: ProfilerAction.RECORD,
            record_shapes=True,
            with_modules=True,
            experimental_config=profile_all_threads(),
        )
        self._profile.start()

    def step(self) -> None:
        """Mark a step: ``ProfilerStep#n``."""
        self._profile.step()

    def stop(self) -> None:
        """Write the trace."""
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._file))
