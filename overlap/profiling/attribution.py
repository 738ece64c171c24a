"""From the ranges a kernel was launched under to its unit and phase.

The most telling name wins: a range of ours (``overlap:gather blocks.3``), one of FSDP2
(``FSDP::all_gather (blocks.3)``; between its hooks ``FSDP::forward (blocks.3)``), the path of modules, any other range
of the program.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from overlap.profiling.fsdp_ranges import PASSES, fsdp_unit_and_phase

MODULE_MARK = "nn.Module: "
OUR_MARK = "overlap:"
# Ranges that say what is called, not for whom.
_MUTE = re.compile(r"^(nccl|NCCL|gloo|mpi|ucc|c10d)[:A-Z]|^ProfilerStep|^aten::|, op_id = |^DistributedDataParallel")


@lru_cache(maxsize=4096)
def unit_and_phase(ranges: tuple[str, ...]) -> tuple[str, str]:
    """Unit and phase; "" where the ranges do not say.

    Args:
        ranges: names of the open ranges, outermost first.
    """
    innermost_first = ranges[::-1]
    for naming in (_ours, _fsdp, _modules, _plain):
        unit, phase = naming(innermost_first)
        if unit or phase:
            return unit, phase
    return "", ""


def _ours(ranges: Sequence[str]) -> tuple[str, str]:
    for name in ranges:
        if name.startswith(OUR_MARK):
            phase, _, unit = name.removeprefix(OUR_MARK).partition(" ")
            return unit, phase
    return "", ""


def _fsdp(ranges: Sequence[str]) -> tuple[str, str]:
    for place, name in enumerate(ranges):
        named = fsdp_unit_and_phase(name)
        if named:
            unit, phase = named
            return unit or _within_root(ranges, place, phase), phase
    return "", ""


def _within_root(ranges: Sequence[str], place: int, phase: str) -> str:
    """FSDP2 has no name for the root: module code of it may have one of its own."""
    return (_modules(ranges)[0] or _plain(ranges[:place])[0]) if phase in PASSES else ""


def _modules(ranges: Sequence[str]) -> tuple[str, str]:
    modules = [name.removeprefix(MODULE_MARK) for name in reversed(ranges) if name.startswith(MODULE_MARK)]
    return "/".join(modules), ""


def _plain(ranges: Sequence[str]) -> tuple[str, str]:
    return next((name for name in ranges if not _MUTE.search(name) and not name.startswith(MODULE_MARK)), ""), ""
