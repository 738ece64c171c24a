"""Bytes to train on: the standard library's own source, or any file or folder.

The batch of a step depends on the seed and the step alone. Each rank takes its slice of it, so a run
sees the same bytes in the same steps on any number of ranks.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from overlap.errors import ConfigError, message

Bytes: TypeAlias = npt.NDArray[np.uint8]

HELDOUT_SHARE = 0.05
LIBRARY_LIMIT = 8 * 2**20
FOLDER_LIMIT = 256 * 2**20
SKIPPED_FOLDERS = frozenset({"test", "tests", "idlelib", "site-packages", "__pycache__"})


@dataclass(frozen=True)
class Corpus:
    """Text as bytes: the front is for training, the tail is held out."""

    train: Bytes
    heldout: Bytes

    def batch(self, *, seed: int, step: int, size: int, context: int) -> Tensor:
        """Return the global batch of a step: int64 ``[size, context + 1]``, each row inputs and targets."""
        starts = np.random.default_rng([seed, step]).integers(0, len(self.train) - context, size)
        return windows(self.train, starts, context)

    def heldout_windows(self, count: int, context: int) -> Tensor:
        """Return ``count`` evenly spaced windows of the held-out bytes, always the same ones."""
        starts = np.linspace(0, len(self.heldout) - context - 1, count).astype(np.int64)
        return windows(self.heldout, starts, context)


def load_corpus(path: Path | None, *, context: int) -> Corpus:
    """Read the corpus at ``path``, or the standard library's source when it is None.

    Raises:
        ConfigError: the path is missing or unreadable, or its text is too short for one held-out window.
    """
    try:
        data = _read_library() if path is None else _read_path(path)
    except OSError as error:
        got = f"{error.filename} ({error.strerror})"
        raise ConfigError(message("data", "be readable", got, "check path and permissions")) from error
    need = int((context + 2) / HELDOUT_SHARE)
    if len(data) < need:
        got = f"{len(data)} bytes in {path or 'the standard library'}"
        raise ConfigError(message("data", f"hold at least {need} bytes of text", got, "give more text"))
    cut = len(data) - int(len(data) * HELDOUT_SHARE)
    return Corpus(train=data[:cut], heldout=data[cut:])


def rank_slice(batch: Tensor, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    """Split one rank's equal share of a global batch into inputs and targets."""
    rows = batch.tensor_split(ranks)[rank]
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def windows(data: Bytes, starts: npt.NDArray[np.int64], context: int) -> Tensor:
    """Cut one window of ``context + 1`` bytes at each start."""
    rows = data[starts[:, None] + np.arange(context + 1)]
    return torch.from_numpy(rows.astype(np.int64))


def _read_library() -> Bytes:
    return _concatenate(_library_files(Path(sysconfig.get_path("stdlib"))), LIBRARY_LIMIT)


def _read_path(path: Path) -> Bytes:
    if path.is_dir():
        return _concatenate(_text_files(path), FOLDER_LIMIT)
    if path.stat().st_size == 0:
        return np.empty(0, np.uint8)  # an empty file cannot be mapped
    return np.memmap(path, np.uint8, mode="r")


def _library_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py")):
        if not SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
            yield path


def _text_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if path.is_file() and not hidden and _is_text(path):
            yield path


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)  # the rule grep and git use


def _concatenate(paths: Iterator[Path], limit: int) -> Bytes:
    text = bytearray()
    for path in paths:
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return np.frombuffer(bytes(text[:limit]), np.uint8)
