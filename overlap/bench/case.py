"""One thing that is measured: an op on inputs of its own, what it moves, how it is checked, and who competes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

from overlap.bench.timing import Run

Yardstick = Literal["copy", "triad", "read", "update"]


@dataclass(frozen=True)
class Peer:
    """Somebody else's way to do the same work, on inputs of its own."""

    name: str
    run: Run | None
    """None where it is not installed."""
    bytes: int = 0
    """Moved, counted over all its passes."""
    results: Callable[[], Sequence[Tensor]] = tuple
    """What it leaves behind, in the order of ``Case.results``; tests compare the two."""
    missing: str | None = None
    """Why it cannot run here."""


@dataclass(frozen=True)
class Case:
    """One op, variant, dtype and size."""

    op: str
    variant: str
    dtype: str
    """Input and output, such as ``bf16 -> fp32``."""
    elements: int
    bytes: int
    """Moved, by the op's own formula: each input read once, each output written once."""
    bound: Yardstick
    """The bandwidth that limits it."""
    call: Callable[[ModuleType], None]
    """Run the op on a face."""
    public: Run
    """Run it through ``overlap.ops``."""
    wrong: Callable[[ModuleType], int]
    """Poison the outputs, run the op on a face, and count the values whose bits differ from the reference."""
    results: Callable[[], Sequence[Tensor]]
    """What the op leaves behind, for comparison with peers."""
    peers: tuple[Peer, ...] = ()

    @property
    def label(self) -> str:
        """Name of the case in one line."""
        return f"{self.op} {self.variant}, {self.dtype}, {self.elements:,} elements"


def dtype_name(dtype: torch.dtype) -> str:
    """Return the short name: fp32, bf16, fp16, int8, e4m3."""
    names = {
        torch.float32: "fp32",
        torch.bfloat16: "bf16",
        torch.float16: "fp16",
        torch.int8: "int8",
        torch.float8_e4m3fn: "e4m3",
    }
    return names[dtype]
