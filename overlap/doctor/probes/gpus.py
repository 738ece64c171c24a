"""GPUs and what joins them."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

import torch

from overlap.doctor.facts import Gpu, Gpus

_PATIENCE_S = 20


def look() -> Gpus:
    """Ask torch for the devices it sees, and the driver for those there are."""
    count = torch.cuda.device_count()  # by NVML: no context
    pairs = itertools.permutations(range(count), 2)
    return Gpus(
        seen=tuple(map(_gpu, range(count))),
        installed=len(_smi("-L").splitlines()),
        no_peer=tuple(pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)),
        links=parse_topology(_smi("topo", "-m")),
    )


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """What ``nvidia-smi topo -m`` says of each pair of GPUs: the cells of its matrix, left of NICs and affinities."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s", line)]
    cells = {
        (row, column): word for row, words in enumerate(rows) for column, word in enumerate(words[1 : len(rows) + 1])
    }
    return {pair: word for pair, word in cells.items() if pair[0] != pair[1]}


def _gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    return Gpu(
        name=properties.name, memory_bytes=properties.total_memory, capability=(properties.major, properties.minor)
    )


def _smi(*arguments: str) -> str:
    """Output of ``nvidia-smi``; empty where it is missing or has no driver to ask."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        finished = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return finished.stdout if finished.returncode == 0 else ""
