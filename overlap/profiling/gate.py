"""A condition on a report for CI: ``exposed_ratio<0.1``, on every rank."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from overlap.errors import ConfigError, message
from overlap.profiling.breakdown import Breakdown
from overlap.profiling.rank_report import Report

_FORM = re.compile(r"^\s*(?P<name>\w+)\s*(?P<sign><=|>=|<|>)\s*(?P<limit>[-+.\deE]+)\s*$")
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _of_span(part: Callable[[Breakdown], int]) -> Callable[[Breakdown], float | None]:
    return lambda totals: part(totals) / totals.span_ns if totals.span_ns else None


FIGURES: Mapping[str, Callable[[Breakdown], float | None]] = {
    "overlap_ratio": lambda totals: totals.ratio,
    "exposed_ratio": lambda totals: None if totals.ratio is None else totals.exposed_comm_ns / totals.comm_ns,
    "exposed_share": _of_span(lambda totals: totals.exposed_comm_ns),
    "copy_share": _of_span(lambda totals: totals.exposed_copy_ns),
    "idle_share": _of_span(lambda totals: totals.idle_ns),
    "compute_share": _of_span(lambda totals: totals.compute_ns),
    "span_us": lambda totals: totals.span_ns / 1000,
    "exposed_comm_us": lambda totals: totals.exposed_comm_ns / 1000,
}
"""``exposed_ratio`` is of communication, the shares are of the span."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A figure, a sign and a limit."""

    name: str
    sign: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> "Gate":
        """Read ``NAME<NUMBER`` (or ``<=``, ``>``, ``>=``)."""
        found = _FORM.match(text)
        try:
            limit = float(found["limit"]) if found else None
        except ValueError:
            limit = None
        if found is None or limit is None:
            cure = "write it like 'exposed_ratio<0.1', in quotes"
            raise ConfigError(message("gate", "be a figure, a sign and a number", text, cure))
        if found["name"] not in FIGURES:
            near = get_close_matches(found["name"], FIGURES, n=1)
            cure = f"did you mean {near[0]}?" if near else "choose one"
            raise ConfigError(message("figure of gate", f"be one of {', '.join(FIGURES)}", found["name"], cure))
        return cls(found["name"], found["sign"], limit)

    def failures(self, report: Report) -> list[str]:
        """A line for each rank that does not pass; a figure that a rank has not fails."""
        lines = []
        for rank in report.ranks:
            value = FIGURES[self.name](rank.totals)
            if value is None:
                lines.append(f"rank {rank.rank}: no {self.name}: {rank.totals.no_comm_reason or 'the window is empty'}")
            elif not _SIGNS[self.sign](value, self.limit):
                lines.append(f"rank {rank.rank}: {self.name} is {value:.4g}, not {self.sign} {self.limit:g}")
        return lines
