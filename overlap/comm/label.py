"""What a collective is for, in the words of its caller: the unit or bucket that errors name. No torch here.

Lanes say it around each job, so that it travels with the call and not through every signature. The ranks also match
calls by it: two units of the same size never take each other's rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Label(NamedTuple):
    """The purpose of the calls made now in this thread."""

    shown: str = ""
    """For people: ``'blocks.3'``."""
    matched: str = ""
    """What must be equal on all ranks for their calls to meet."""


_label: ContextVar[Label] = ContextVar("overlap_label", default=Label())  # noqa: B039 - immutable


def current_label() -> Label:
    """What was said by the innermost `labelled` around the caller; empty outside of any."""
    return _label.get()


set_label = _label.set
"""Says what the collectives are for from here on; jobs of lanes, which are many, have but these two around them."""
reset_label = _label.reset
"""Takes what ``set_label`` gave: they are for what they were for before."""


@contextmanager
def labelled(shown: str, matched: str | None = None) -> Iterator[None]:
    """Say what the collectives inside are for.

    Args:
        shown: goes into errors behind "of".
        matched: goes into the matching of calls; None is `shown`.
    """
    token = set_label(Label(shown, shown if matched is None else matched))
    try:
        yield
    finally:
        reset_label(token)
