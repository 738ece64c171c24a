"""What verify has to say, as data and as text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from overlap.verify.finding import Finding
from overlap.verify.text import count, verdict_lines, warning_lines
from overlap.verify.tolerance import Tolerance


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """The outcome of a run, the same on every rank."""

    ranks: int
    """Processes that took part."""
    stage: int
    """What was sharded, 0 to 3."""
    options: Mapping[str, str]
    """What ``overlap.shard`` was given, as text."""
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
        """All of it as one JSON object with ``ok``; each finding with its severity and cure. Not finite is null."""
        findings = [
            {**asdict(finding), "severity": finding.severity, "cure": finding.cure} for finding in self.findings
        ]
        return json.dumps(_finite({"ok": self.ok, **asdict(self), "findings": findings}), indent=2, allow_nan=False)

    def text(self) -> str:
        """The report for people, without a newline at its end."""
        return "\n".join([*self._head(), *verdict_lines(self.errors), *warning_lines(self.warnings)])

    def _head(self) -> Iterator[str]:
        given = "".join(f", {name} {value}" for name, value in self.options.items() if name != "stage")
        yield f"stage {self.stage}, {count(self.ranks, 'rank')}, {count(self.steps, 'step')}{given}"
        allowed = self.tolerance
        yield (
            f"tolerance: {allowed.atol:g} + a tensor's largest value times {allowed.forward:.2g} (forward), "
            f"{allowed.gradient:.2g} (gradients), {allowed.weight:.2g} (weights)"
        )
        if self.losses:
            yield "loss: " + ", ".join(f"{loss:.6g}" for loss in self.losses)
        if self.frozen:
            yield f"{count(len(self.frozen), 'frozen parameter')}, as asked"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
