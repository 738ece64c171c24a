"""How much slower compute runs beside communication: the same kernel alone and under a collective.

Kernels are the same that have name, grid, block and unit in common. They count with enough samples of both kinds,
against their median alone. A source that tells no grid tells nothing here; where one grid does different work, the
estimate is rough.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from overlap.profiling.intervals import Interval, length, within
from overlap.profiling.recording import COMPUTE, Activity

_BESIDE = 0.5
"""From this part of a kernel's time on it counts as run beside communication."""
_SAMPLES = 3
"""As many runs alone and beside it takes to say something about a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Compute beside communication against compute alone."""

    beside_ns: int
    """Time of the kernels beside communication that also ran alone often enough."""
    alone_ns: int
    """What they would have taken at their median alone."""
    kernels: int
    """Number of such runs."""

    @property
    def fraction(self) -> float | None:
        """0.3: compute takes 30 % longer beside communication; None without samples."""
        return self.beside_ns / self.alone_ns - 1 if self.alone_ns else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, times in µs."""
        times = {"beside_us": self.beside_ns / 1000, "alone_us": self.alone_ns / 1000}
        return {"fraction": self.fraction, **times, "kernels": self.kernels}


def slowdown(activities: Sequence[Activity], comm: Sequence[Interval]) -> Slowdown:
    """Compare the compute of one rank beside ``comm`` and alone."""
    alone, beside = defaultdict(list), defaultdict(list)
    for one in activities:
        took = one.end_ns - one.start_ns
        if one.category == COMPUTE and one.shape and took:
            under = length(within(comm, one.start_ns, one.end_ns))
            if under == 0:
                alone[_identity(one)].append(took)
            elif under >= _BESIDE * took:
                beside[_identity(one)].append(took)
    both = [key for key in beside if len(alone[key]) >= _SAMPLES and len(beside[key]) >= _SAMPLES]
    return Slowdown(
        beside_ns=sum(sum(beside[key]) for key in both),
        alone_ns=round(sum(median(alone[key]) * len(beside[key]) for key in both)),
        kernels=sum(len(beside[key]) for key in both),
    )


def _identity(one: Activity) -> tuple[str, str, str]:
    return one.name, one.shape, one.unit
