"""One thing that verify found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from overlap.verify.compare import Difference
from overlap.verify.cures import CURES, ERRORS, Kind

Severity = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was found."""

    kind: Kind
    """What was looked at; docs/verify.md lists the kinds."""
    step: int
    """Optimizer step, the first is 1; 0 is before it."""
    unit: str
    """Fully qualified name of the unit's module; "" is the whole model's own unit."""
    tensor: str
    """Parameter or buffer by its fully qualified name; of a forward ``input[n]`` or ``output[n]``; "" where there is
    none."""
    ranks: tuple[int, ...]
    """Where it was seen."""
    max_abs_error: float | None = None
    """Largest absolute error over elements and ranks; None where there is nothing to subtract."""
    max_rel_error: float | None = None
    """Largest absolute error over the largest absolute value of the unsharded tensor."""
    tolerance: float | None = None
    """Largest absolute error that would have passed."""
    detail: str = ""
    """The worst element with both values, or what else was met."""

    @property
    def severity(self) -> Severity:
        """``error``: the sharded model is not the unsharded one. ``warning``: it is, but this wants a look."""
        return "error" if self.kind in ERRORS else "warning"

    @property
    def cure(self) -> str:
        """What to do about it."""
        return CURES[self.kind]


@dataclass(frozen=True, slots=True)
class Spot:
    """Where one rank looks: the fields that its findings of one step share."""

    step: int
    rank: int

    def finding(self, kind: Kind, unit: str, tensor: str, met: Difference | str) -> Finding:
        """A finding of this rank.

        Args:
            kind: what was looked at.
            unit: of the tensor.
            tensor: its name.
            met: figures, or only words.
        """
        figures = met if isinstance(met, Difference) else Difference(None, None, None, met)
        return Finding(
            kind=kind,
            step=self.step,
            unit=unit,
            tensor=tensor,
            ranks=(self.rank,),
            max_abs_error=figures.max_abs,
            max_rel_error=figures.max_rel,
            tolerance=figures.allowed,
            detail=figures.detail,
        )
