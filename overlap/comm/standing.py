"""What one rank tells another about its calls, and what the other makes of it. No torch here."""

import json
from dataclasses import asdict, dataclass

from overlap.comm.calls import CallLog, all_logs


@dataclass(frozen=True, slots=True)
class Standing:
    """One communicator of a rank at the moment of telling.

    Attributes:
        group: as in `CallLog`.
        number: as in `CallLog`.
        call: number of the latest call, -1 before the first.
        running: whether the rank is in that call.
        failed: whether that call has not ended well, or not yet.
        text: the log in words.
    """

    group: str
    number: int
    call: int
    running: bool
    failed: bool
    text: str


def tell() -> str:
    """All standings of this process."""
    return json.dumps([asdict(_standing(log)) for log in all_logs()])


def understand(told: str | bytes, mine: CallLog) -> str | None:
    """Where a rank stands from the point of view of a call that it did not answer; None if what it told is too old.

    Args:
        told: by that rank.
        mine: of the communicator whose latest call, here, the rank did not answer.
    """
    theirs = [Standing(**each) for each in json.loads(told)]
    same = next((each for each in theirs if (each.group, each.number) == (mine.group, mine.number)), None)
    if same is None:
        return _join(f"has no communicator for lane '{mine.lane}'", _elsewhere(theirs))
    if mine.latest is not None and same.call < mine.latest.number - 1:
        return None  # it has answered later calls since it told this
    return same.text if same.failed else _join(same.text, _elsewhere(theirs))


def _standing(log: CallLog) -> Standing:
    call = -1 if log.latest is None else log.latest.number
    return Standing(log.group, log.number, call, log.running, log.failed, str(log))


def _elsewhere(theirs: list[Standing]) -> str | None:
    """The call on another lane that the rank entered last and is still in."""
    return next((each.text for each in reversed(theirs) if each.running), None)


def _join(here: str, elsewhere: str | None) -> str:
    return here if elsewhere is None else f"{here}, and {elsewhere}"
