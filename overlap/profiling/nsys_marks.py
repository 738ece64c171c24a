"""What ``overlap profile`` tells nsys by NVTX, and what a reader of the export finds again."""

import re
from collections.abc import Mapping, Sequence

CAPTURE_RANGE, CAPTURE_DOMAIN = "recording", "overlap.record"
"""Open while nsys captures, where no CUDA profiler can be started."""
STEP = "ProfilerStep#"
"""Name of a step's range, before its number; torch.profiler's own."""
_RANK = "overlap:rank "


def rank_mark(rank: int) -> str:
    """The mark by which a process says which rank it is."""
    return f"{_RANK}{rank}"


def rank_of_mark(text: str) -> int | None:
    """The rank that such a mark names; None for any other text."""
    found = re.fullmatch(rf"{_RANK}(\d+)", text)
    return int(found[1]) if found else None


def ranks_of(processes: Sequence[int], said: Mapping[int, int]) -> list[int]:
    """What each said, where all did and no two the same (one may use two devices); else their places."""
    ranks = [said[process] for process in processes if process in said]
    return ranks if len(set(ranks)) == len(processes) else list(range(len(processes)))
