"""Full parameters outside of forward and backward: ``unshard()`` and ``reshard()``."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.fsdp import UnshardHandle as TorchHandle

from overlap.errors import StateError, message


class UnshardHandle(TorchHandle):
    """What ``unshard(async_op=True)`` returns."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish

    def wait(self) -> None:
        """Let compute wait for the gather, and show full parameters. The unit's forward does it, too."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


def refuse_inside(method: str) -> None:
    """In a pass the plan decides what is gathered when."""
    cure = "call it between passes; inside, call the submodule or register_forward_method()"
    raise StateError(message(f"{method}()", "be called outside of forward and backward", "a call inside", cure))
