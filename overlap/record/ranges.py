"""Our ranges in a trace of torch.profiler, which does not read NVTX."""

import threading
from typing import Any

from overlap.nvtx import DOMAIN


class ProfilerDomain:
    """Stands in for the NVTX domain: a range is a ``record_function`` named ``overlap:gather blocks.3``."""

    def __init__(self) -> None:
        self._open = threading.local()

    def get_event_attributes(self, message: str, color: int, category: str, payload: int) -> str:
        """The name is all that a trace keeps."""
        return f"{DOMAIN}:{message}"

    def push_range(self, attributes: str) -> None:
        """Open a range on the calling thread."""
        from torch.autograd.profiler import record_function

        scope = record_function(attributes)
        scope.__enter__()  # type: ignore[no-untyped-call]  # of torch
        self._stack().append(scope)

    def pop_range(self) -> None:
        """Close the calling thread's innermost range."""
        stack = self._stack()
        if stack:  # a pass that failed may be closed by another thread than the one that began it
            stack.pop().__exit__(None, None, None)

    def _stack(self) -> list[Any]:
        if not hasattr(self._open, "stack"):
            self._open.stack = []
        stack: list[Any] = self._open.stack
        return stack


def listener_for(tool: str) -> ProfilerDomain | None:
    """Who receives the ranges; None where NVTX itself does."""
    return ProfilerDomain() if tool == "torch" else None
