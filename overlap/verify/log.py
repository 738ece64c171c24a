"""Findings of all ranks, brought together: every rank has the same list and goes on, or stops, with the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from overlap.verify.finding import Finding
from overlap.verify.peers import Peers

Placed = tuple[int, Finding]
"""A finding and its place in the order of cause and effect within one check."""


class Log:
    """What was found so far."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._found: dict[tuple[str, str, str], Finding] = {}

    def note(self, mine: Iterable[Placed]) -> bool:
        """Add what one check has found; True if any rank found an error. A collective."""
        everyone: list[list[Placed]] = self._peers.gather(list(mine))
        placed = [item for theirs in everyone for item in theirs]
        for _, finding in sorted(placed, key=lambda item: item[0]):  # stable: by rank within a place
            self._add(finding)
        return any(finding.severity == "error" for _, finding in placed)

    def findings(self) -> tuple[Finding, ...]:
        """All, each thing once: errors first, then warnings by kind."""
        found = list(self._found.values())
        errors = [finding for finding in found if finding.severity == "error"]
        warnings = [finding for finding in found if finding.severity == "warning"]
        return (*errors, *sorted(warnings, key=lambda finding: finding.kind))

    def _add(self, finding: Finding) -> None:
        """A thing that was found before keeps its first step and takes in further ranks of it."""
        key = (finding.kind, finding.unit, finding.tensor)
        old = self._found.get(key)
        if old is None:
            self._found[key] = finding
        elif old.step == finding.step:
            worse = max(old, finding, key=lambda each: each.max_abs_error or 0.0)
            self._found[key] = replace(worse, ranks=tuple(sorted({*old.ranks, *finding.ranks})))
