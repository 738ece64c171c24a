"""How many threads one native op may use. Never changes a result: work is split by element index."""

import torch

from overlap.errors import ConfigError, message
from overlap.ops.scalars import is_whole

_num_threads: int | None = None


def set_num_threads(count: int | None) -> None:
    """Let each native op use up to ``count`` threads; None follows ``torch.get_num_threads()``.

    Raises:
        ConfigError: ``count`` is no int, or below 1.
    """
    global _num_threads
    if count is not None and (not is_whole(count) or count < 1):
        raise ConfigError(message("num_threads", "be at least 1, an int", count, "pass None to follow torch"))
    _num_threads = count


def get_num_threads() -> int:
    """Return the most threads that one native op uses."""
    return torch.get_num_threads() if _num_threads is None else _num_threads
