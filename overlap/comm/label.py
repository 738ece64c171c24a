"""What a collective is for, in the words of its caller: the unit or bucket that errors name. No torch here.

Lanes say it around each job, so that it travels with the call and not through every signature. The ranks also match
calls by it: two units of the same size never take each other's rows.
"""

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


class Labelled:
    """Says what the collectives inside of it are for. A generator would cost a lane's job several times as much."""

    __slots__ = ("_label", "_token")

    def __init__(self, label: Label) -> None:
        self._label = label

    def __enter__(self) -> None:
        """From here on."""
        self._token = _label.set(self._label)

    def __exit__(self, *_: object) -> None:
        """Up to here."""
        _label.reset(self._token)


def labelled(shown: str, matched: str | None = None) -> Labelled:
    """Say what the collectives inside are for.

    Args:
        shown: goes into errors behind "of".
        matched: goes into the matching of calls; None is `shown`.
    """
    return Labelled(Label(shown, shown if matched is None else matched))
