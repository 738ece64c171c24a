"""Findings on the terminal and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from overlap.doctor.finding import LEVELS, Finding, Level

COLOURS: Mapping[Level, str] = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}

Findings = Mapping[str, Sequence[Finding]]
"""By family."""


def print_findings(findings: Findings, console: Console) -> None:
    """One line per finding; where it is not simply well, why it matters and what to do below it."""
    for family, group in findings.items():
        console.print(Text(family, style="bold"))
        for finding in group:
            _print(finding, console)
    counts = count(findings)
    console.print(Text(", ".join(f"{counts[level]} {level}" for level in LEVELS), style=COLOURS[_worst(counts)]))


def count(findings: Findings) -> dict[Level, int]:
    """Findings by level; all levels are there."""
    counted = Counter(finding.level for group in findings.values() for finding in group)
    return {level: counted[level] for level in LEVELS}


def to_dict(findings: Findings) -> dict[str, Any]:
    """What ``--json`` writes."""
    rows = [{"family": family, **asdict(finding)} for family, group in findings.items() for finding in group]
    return {"counts": count(findings), "findings": rows}


def _print(finding: Finding, console: Console) -> None:
    line = Text.assemble(
        "  ", (f"{finding.level:<8}", COLOURS[finding.level]), f"{finding.subject}: ", (finding.value, "bold")
    )
    console.print(line, soft_wrap=True)
    for word, text in (("why", finding.why), ("cure", finding.cure)):
        if text:
            console.print(Padding(Text(f"{word:<5} {text}"), (0, 0, 0, 10), expand=False))


def _worst(counts: Mapping[Level, int]) -> Level:
    return next((level for level in reversed(LEVELS) if counts[level]), "ok")
