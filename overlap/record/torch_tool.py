"""torch.profiler in one rank: a gzipped Chrome trace in the folder of the recording."""

from pathlib import Path

from torch.profiler import ProfilerAction, profile, supported_activities

from overlap._compat import profile_all_threads
from overlap.record.rank import rank_of_process


class TorchRecording:
    """Records from construction on; modules are named, so that kernels can be given to them."""

    def __init__(self, out: str) -> None:
        self._file = Path(out) / f"rank{rank_of_process()}.json.gz"
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
