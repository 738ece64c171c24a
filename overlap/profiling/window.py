"""A window: spans that can be measured or drawn together, because one rank recorded them on one clock."""

from collections.abc import Iterable

from overlap.errors import ConfigError, StateError, message
from overlap.profiling.timeline import Span


def window_of(spans: Iterable[Span]) -> list[Span]:
    """The spans in order of start; refuses an empty window and one of several ranks."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
    ranks = sorted({span.rank for span in ordered})
    if not ranks:
        cure = "run a step with observation on, and ask for a step the timeline still remembers"
        raise StateError(message("window", "hold at least one span", "none", cure))
    if len(ranks) > 1:
        cure = "take the ranks one by one (per_step does)"
        raise ConfigError(message("window", "be of one rank", f"ranks {ranks}", cure))
    return ordered
