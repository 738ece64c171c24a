"""What ``overlap bench collective`` does in the process that the user started."""

from __future__ import annotations

from dataclasses import replace

from overlap.bench.collective import report as words
from overlap.bench.collective.ranks import outcome_of
from overlap.bench.collective.results import Report
from overlap.bench.collective.settings import CollectiveSettings
from overlap.bench.netlab.net import Net

WORKER = "overlap.bench.collective.worker"


def run_local(settings: CollectiveSettings, net: Net) -> Report:
    """Run on processes of this host, which print as they go.

    Args:
        settings: what to measure.
        net: links between the ranks; where it has a rate, each rank is a host of its own.

    Raises:
        ConfigError: the file cannot be written, or links cannot be limited here.
        OverlapError: a rank failed; the others have been stopped.
    """
    found = outcome_of(net, WORKER, settings.ranks, settings.json, lambda path: replace(settings, json=path).to_json())
    report = Report.from_dict(found)
    if net.bits_per_s is not None:  # what its ranks print goes to stderr
        _print(report)
    return report


def _print(report: Report) -> None:
    several = len(report.settings["transports"]) > 1
    print(*words.opening(report.machine, report.settings), sep="\n")
    for op in report.settings["collectives"]:
        print(*words.header(op, report.settings["transports"]), sep="\n")
        print(*(words.line(row, several) for row in report.rows if row.collective == op), sep="\n")
    print(*words.closing(report), sep="\n")
