"""What verify has to say, as data."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from overlap.verify.cures import ERRORS, Kind
from overlap.verify.text import render
from overlap.verify.tolerance import Tolerance

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
    cure: str = ""
    """What to do about it."""

    @property
    def severity(self) -> Severity:
        """``error``: the sharded model is not the unsharded one. ``warning``: it is, but this wants a look."""
        return "error" if self.kind in ERRORS else "warning"


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """The outcome of a run, the same on every rank."""

    ranks: int
    """Processes that took part."""
    stage: int
    """What was sharded, 0 to 3."""
    steps: int
    """Optimizer steps that were begun; the last one is that of the first error, if there is one."""
    losses: tuple[float, ...]
    """Mean over ranks of the sharded model's loss, by step."""
    tolerance: Tolerance
    """What passed."""
    frozen: tuple[str, ...]
    """Parameters that were not to be trained: known, not complained about."""
    findings: tuple[Finding, ...]
    """Errors in the order of cause and effect, then warnings."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Where sharded and unsharded differ. Only the first is sure to be a cause; the run ends with its step."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What wants a look though both agree."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    @property
    def first(self) -> Finding | None:
        """The first difference, None if there is none."""
        return next(iter(self.errors), None)

    @property
    def ok(self) -> bool:
        """Whether sharded and unsharded agree within the tolerance; warnings do not count."""
        return not self.errors

    def to_json(self) -> str:
        """All of it as one JSON object; an error that is not finite is null there."""
        findings = [{**asdict(finding), "severity": finding.severity} for finding in self.findings]
        return json.dumps(_finite({"ok": self.ok, **asdict(self), "findings": findings}), indent=2, allow_nan=False)

    def text(self) -> str:
        """The report for people, without a newline at its end."""
        return render(self)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
