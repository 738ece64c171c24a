"""The words of a collective that failed: who, in which call, for which unit, and what the others do instead."""

from collections.abc import Mapping, Sequence

import torch.distributed as dist

from overlap.comm.calls import CallLog, earlier_trouble
from overlap.comm.report import where_they_stand
from overlap.errors import DesyncError, message

_SHOWN = 4
"""Ranks whose standing is quoted: where all of a thousand are out of step, a few tell as much."""


def unanswered(log: CallLog, ranks: Sequence[int], timeout_s: float | None, cause: Exception) -> DesyncError:
    """The latest call of a communicator got no answer from some ranks.

    Args:
        log: of the communicator.
        ranks: global ranks that did not answer.
        timeout_s: how long they had.
        cause: what the backend said.
    """
    rule = "answer in time" if timeout_s is None else f"answer within {timeout_s:g} s"
    standings = where_they_stand(log, ranks)
    got = f"no answer: {_quote(ranks, standings)}{_own(log)} [{_first_sentence(cause)}]"
    return DesyncError(message(f"{_name(ranks)} in {_call(log)}", rule, got, _cure(standings)))


def broken(log: CallLog, ranks: Sequence[int], cause: Exception) -> DesyncError:
    """The backend has given up on the latest call of a communicator, and cannot say because of whom.

    Args:
        log: of the communicator.
        ranks: global ranks of all others in the group.
        cause: what the backend said.
    """
    standings = where_they_stand(log, ranks)
    got = f"{_first_sentence(cause)}: {_quote(ranks, standings)}{_own(log)}"
    return DesyncError(message(_call(log), "complete on all ranks", got, _cure(standings)))


def _name(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (", ..." if len(ranks) > _SHOWN else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def _call(log: CallLog) -> str:
    assert log.latest is not None
    return f"{log.latest.name}, call {log.latest.number} on lane '{log.lane}', as rank {dist.get_rank()} sees it,"


def _quote(ranks: Sequence[int], standings: Mapping[int, str]) -> str:
    told = sorted(standings.items())[:_SHOWN]
    silent = [rank for rank in ranks if rank not in standings]
    lines = [f"rank {rank} {text}" for rank, text in told]
    if silent:
        lines.append(f"nothing was heard of {_name(silent)}")
    return "; ".join(lines)


def _own(log: CallLog) -> str:
    """What had come to a stop here before, on another lane: likely the call where the ranks parted."""
    earlier = earlier_trouble(log)
    return f"; this rank {earlier} since before" if earlier else ""


def _cure(standings: Mapping[int, str]) -> str:
    if standings:
        return "let all ranks make the same calls: the same model, options, route and number of batches"
    return "look at that log: who says nothing has ended, died or hangs (do all ranks have the same number of batches?)"


def _first_sentence(error: Exception) -> str:
    """Without the path of the source line that gloo puts in front, and the advice behind."""
    text = str(error).partition("\n")[0]
    if text.startswith("["):
        text = text.partition("] ")[2] or text
    return text.partition(". ")[0]
