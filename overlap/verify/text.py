"""The findings for people: the first difference in full, the rest in a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from overlap.verify.cures import MEANINGS
from overlap.verify.finding import Finding

SHOWN = 5
"""Findings of one kind that are listed; the rest is counted, and in the JSON."""


def verdict_lines(errors: Sequence[Finding]) -> Iterator[str]:
    """Whether both models agree; else the first difference, and what else differs in its step."""
    if not errors:
        yield "SAME: forward, gradients, parameters and buffers agree with the unsharded model at every step"
        return
    first, *others = errors
    yield f"DIFFERENT: {MEANINGS[first.kind]}"
    yield f"  first    {_place(first)}"
    yield from (f"  {line}" for line in _figures(first))
    yield f"  cure     {first.cure}"
    yield from (f"  also     {_with(finding)}" for finding in others[:SHOWN])
    if len(others) > SHOWN:
        yield f"  also     {len(others) - SHOWN} more"


def warning_lines(warnings: Sequence[Finding]) -> Iterator[str]:
    """A paragraph for each kind of warning, with one cure."""
    for kind, group in groupby(warnings, key=lambda finding: finding.kind):
        found = list(group)
        yield f"warning: {MEANINGS[kind]}"
        yield from (f"  {_with(finding)}" for finding in found[:SHOWN])
        if len(found) > SHOWN:
            yield f"  and {len(found) - SHOWN} more"
        yield f"  cure     {found[0].cure}"


def count(number: int, thing: str) -> str:
    """A number of things, in words."""
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _figures(finding: Finding) -> Iterator[str]:
    if finding.max_abs_error is not None:
        relative = f"{finding.max_rel_error:.2g} of the largest value"
        yield f"error    {finding.max_abs_error:.3g} ({relative}), allowed {finding.tolerance:.3g}"
    if finding.detail:
        yield f"met      {finding.detail}"


def _place(finding: Finding) -> str:
    step = f"step {finding.step}" if finding.step else "before step 1"
    unit = f"unit {finding.unit or '(root)'}"
    ranks = ("rank " if len(finding.ranks) == 1 else "ranks ") + ", ".join(map(str, finding.ranks))
    return ", ".join(filter(None, [step, unit, finding.tensor, ranks]))


def _with(finding: Finding) -> str:
    short = finding.detail if finding.max_abs_error is None else f"error {finding.max_abs_error:.3g}"
    return f"{_place(finding)}: {short}" if short else _place(finding)
