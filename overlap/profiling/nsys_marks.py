"""What ``overlap profile`` tells nsys by NVTX, and what a reader of the export finds again."""

import re

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
