"""What ``overlap bench op`` was asked for. What can be refused is refused here, before anything is measured."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from overlap.bench.faces import DEVICES, default_faces
from overlap.bench.rows import OPS
from overlap.bench.words import choose, names, positive, words
from overlap.errors import ConfigError, message

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class OpSettings:
    """One run of the op bench."""

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    """Elements."""
    dtypes: tuple[str, ...]
    """Of the input: gradient, row, bucket or values."""
    device: str
    faces: tuple[str, ...]
    threads: int
    """Of torch, of the native ops and of DeepSpeed."""
    repeats: int
    """Counted rounds per case."""
    budget_s: float
    """Of a case's rounds, in seconds."""
    time_limit_s: float | None
    """No further case begins after so many seconds."""
    overhead: bool
    """Measure what a call costs before its first byte, too."""

    @classmethod
    def parse(
        cls,
        *,
        op: Sequence[str] | None,
        sizes: str,
        dtypes: str,
        device: str,
        faces: str | None,
        threads: int | None,
        repeats: int,
        budget: float,
        time_limit: float | None,
        overhead: bool,
    ) -> Self:
        """Read the words of the command line; what is None is chosen here.

        Raises:
            ConfigError: an unknown name (with the nearest known one), an unreadable size, a number out of range, a
                device or face that is not there.
        """
        choose("device", device, tuple(DEVICES))
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError(message("device", "be there", "cuda, which this torch does not see", "use --device cpu"))
        return cls(
            ops=names("op", words(",".join(op or OPS)), tuple(OPS)),
            sizes=tuple(parse_size(word) for word in words(sizes)),
            dtypes=names("dtypes", words(dtypes), tuple(DTYPES)),
            device=device,
            faces=default_faces(device) if faces is None else names("faces", words(faces), DEVICES[device]),
            threads=positive("threads", torch.get_num_threads() if threads is None else threads),
            repeats=positive("repeats", repeats),
            budget_s=positive("budget", budget),
            time_limit_s=None if time_limit is None else positive("time-limit", time_limit),
            overhead=overhead,
        )


def parse_size(word: str) -> int:
    """Read a number of elements such as ``4096``, ``64K``, ``32M`` or ``1G`` (powers of 1024).

    Raises:
        ConfigError: it is none.
    """
    matched = re.fullmatch(r"([0-9]+)([KMG]?)", word.upper())
    if matched is None or int(matched[1]) == 0:
        raise ConfigError(message("sizes", "be positive numbers such as 4096, 64K or 32M", word, "give elements so"))
    return int(matched[1]) * UNITS[matched[2]]
