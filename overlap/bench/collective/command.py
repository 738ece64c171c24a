"""What ``overlap bench collective`` does in the process that the user started."""

from __future__ import annotations

import json
from dataclasses import replace

from overlap.bench.collective import report as words
from overlap.bench.collective.ranks import report_file, run_on
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
    with report_file(settings.json) as path:
        run_on(net, WORKER, replace(settings, json=str(path)).to_json(), settings.ranks)
        report = Report.from_dict(json.loads(path.read_text(encoding="utf-8")))
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
