"""What ``overlap doctor`` does."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from overlap.doctor.checks import examine
from overlap.doctor.probes import look
from overlap.doctor.report import count, print_findings, to_dict
from overlap.errors import ConfigError, message
from overlap.jsonfile import write_json


def diagnose(*, ranks: int, strict: bool, json_file: Path | None, console: Console) -> bool:
    """Look, judge, print; whether this can be left as it is.

    Args:
        ranks: of the job on this host.
        strict: let warnings count as errors.
        json_file: also write the findings there.
        console: to print on.

    Raises:
        ConfigError: no ranks, or a file that cannot be written.
    """
    if ranks < 1:
        raise ConfigError(message("ranks", "be positive", ranks, "give a larger value"))
    findings = examine(look(ranks))
    print_findings(findings, console)
    write_json(json_file, to_dict(findings))
    counts = count(findings)
    return not (counts["error"] or (strict and counts["warning"]))
