"""The report for people: the verdict, the first difference in full, the rest in a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from overlap.verify.cures import MEANINGS

if TYPE_CHECKING:
    from overlap.verify.report import Finding, VerifyReport

SHOWN = 8
"""Findings of one kind that are listed; the rest is counted, and in the JSON."""


def render(report: VerifyReport) -> str:
    """Compose the text."""
    return "\n".join([*_head(report), *_verdict(report), *_warnings(report.warnings)])


def _head(report: VerifyReport) -> Iterator[str]:
    allowed = report.tolerance
    yield f"stage {report.stage}, {_count(report.ranks, 'rank')}, {_count(report.steps, 'step')}"
    yield (
        f"tolerance: {allowed.atol:g} + a tensor's largest value times {allowed.forward:.2g} (forward), "
        f"{allowed.gradient:.2g} (gradients), {allowed.weight:.2g} (weights)"
    )
    if report.losses:
        yield "loss: " + ", ".join(f"{loss:.6g}" for loss in report.losses)
    if report.frozen:
        yield f"{_count(len(report.frozen), 'frozen parameter')}, as asked"


def _verdict(report: VerifyReport) -> Iterator[str]:
    first = report.first
    if first is None:
        yield "SAME: forward, gradients, parameters and buffers agree with the unsharded model at every step"
        return
    yield f"DIFFERENT: {MEANINGS[first.kind]}"
    yield f"  first    {_place(first)}"
    yield from (f"  {line}" for line in _figures(first))
    yield f"  cure     {first.cure}"
    yield from _others([finding for finding in report.errors if finding is not first])


def _figures(finding: Finding) -> Iterator[str]:
    if finding.max_abs_error is not None and finding.tolerance is not None:
        relative = "" if finding.max_rel_error is None else f" ({finding.max_rel_error:.2g} of the largest value)"
        yield f"error    {finding.max_abs_error:.3g}{relative}, allowed {finding.tolerance:.3g}"
    if finding.detail:
        yield f"met      {finding.detail}"


def _others(findings: Sequence[Finding]) -> Iterator[str]:
    """What else differs in the same step, which may be the first one's consequence."""
    for finding in findings[:SHOWN]:
        yield f"  also     {_place(finding)}: {_short(finding)}"
    if len(findings) > SHOWN:
        yield f"  also     {len(findings) - SHOWN} more"


def _warnings(warnings: Sequence[Finding]) -> Iterator[str]:
    for kind, group in groupby(warnings, key=lambda finding: finding.kind):
        found = list(group)
        yield f"warning: {MEANINGS[kind]}"
        yield from (f"  {_place(finding)}{_colon(_short(finding))}" for finding in found[:SHOWN])
        if len(found) > SHOWN:
            yield f"  and {len(found) - SHOWN} more"
        yield f"  cure     {found[0].cure}"


def _place(finding: Finding) -> str:
    unit = f"unit {finding.unit}" if finding.unit else "unit (root)"
    ranks = ("rank " if len(finding.ranks) == 1 else "ranks ") + ", ".join(map(str, finding.ranks))
    step = f"step {finding.step}" if finding.step else "before step 1"
    return ", ".join(filter(None, [step, unit, finding.tensor, ranks]))


def _short(finding: Finding) -> str:
    return finding.detail or ("" if finding.max_abs_error is None else f"error {finding.max_abs_error:.3g}")


def _colon(text: str) -> str:
    return f": {text}" if text else ""


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
