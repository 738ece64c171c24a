"""One rank skips, doubles or reorders a call, of every kind of collective: all ranks raise, and say what went wrong.

Every call moves tensors of one size, so that only the matching of calls keeps a unit from getting the rows of another.
The cases of a world run side by side, each in a thread and on a lane of its own: they spend their time in waiting.
"""

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from support.carriers import carried_by
from support.clear_error import GRAMMAR
from support.ranks import Ranks

from overlap.comm.collective import Communicator
from overlap.comm.groups import communicator_for, lane_group
from overlap.comm.label import labelled
from overlap.comm.process_group import ProcessGroupCommunicator
from overlap.comm.shaped import Fault, ShapedCommunicator
from overlap.errors import DesyncError
from overlap.shard.piece import Piece

TIMEOUT_S = 2.0
MARGIN_S = 2.0
UNITS = 4
FAULTY = 1
"""Of which unit a call goes wrong."""
SIZE = 12


@dataclass(frozen=True)
class Case:
    """Which rank gets which kind of call wrong, and how."""

    implementation: str
    op: str
    action: str
    victim: int = 1

    def __str__(self) -> str:
        return f"{self.implementation}-{self.op}-{self.action}-{self.victim}"


@dataclass(frozen=True)
class Outcome:
    """What a rank has seen: how many calls were right, and then which error, how long after the call's begin."""

    right: int
    text: str
    seconds: float


OPS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")
CASES = [
    Case(implementation, op, action, victim)
    for implementation in ("memory", "gloo", "process_group")
    for op in OPS
    for action in ("skip", "double", "reorder")
    for victim in ((0, 1) if op == "broadcast" else (1,))  # a source and one that only receives
]


def _outcomes(cases: list[Case]) -> list[Outcome]:
    comms = [_open(case) for case in cases]
    with ThreadPoolExecutor(len(cases)) as threads:
        return list(threads.map(_run, cases, comms))


def _open(case: Case) -> Communicator:
    comm: Communicator
    if case.implementation == "process_group":
        comm = ProcessGroupCommunicator(lane_group(None, str(case), backend="gloo"), str(case))
    else:
        comm = carried_by(case.implementation, lambda: communicator_for(None, str(case), "cpu"))
    return ShapedCommunicator(comm, fail_on=[Fault("bulk", FAULTY, case.action)] if comm.rank == case.victim else [])


def _run(case: Case, comm: Communicator) -> Outcome:
    for unit in range(UNITS):
        start = time.monotonic()
        try:
            with labelled(f"'unit.{unit}'"):
                right = _is_right(case.op, comm, unit)
        except DesyncError as error:
            return Outcome(unit, str(error), time.monotonic() - start)
        assert right or (comm.rank == case.victim and unit >= FAULTY), f"wrong numbers for unit {unit} in {case}"
    return Outcome(UNITS, "", 0.0)


def _is_right(op: str, comm: Communicator, unit: int) -> bool:
    """Make one call; whether this rank has got what it should."""
    value = torch.full((SIZE,), float(1 + unit))  # says which unit it belongs to
    got, expected = torch.zeros(SIZE), comm.world * value
    if op == "all_gather":
        got, expected = torch.zeros(comm.world * SIZE), value.repeat(comm.world)
        comm.all_gather([Piece(value, got)], "bulk")
    elif op == "reduce_scatter":
        comm.reduce_scatter(value.repeat(comm.world, 1), got, "bulk")
    elif op == "all_reduce":
        comm.all_reduce(got.copy_(value), "bulk")
    else:
        expected = value
        comm.broadcast(got.copy_(value) if comm.rank == 0 else got, 0, "bulk")
    return torch.equal(got, expected)


@pytest.fixture(scope="module", params=[2, 3, 4])
def outcomes(ranks: Ranks, request: pytest.FixtureRequest) -> Callable[[Case], list[Outcome]]:
    world: int = request.param
    by_rank = ranks.fresh(world, _outcomes, CASES, group_timeout_s=TIMEOUT_S)
    return lambda case: [mine[CASES.index(case)] for mine in by_rank]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_rank_raises_in_time(outcomes: Callable[[Case], list[Outcome]], case: Case) -> None:
    for rank, seen in enumerate(outcomes(case)):
        assert FAULTY <= seen.right < UNITS, f"rank {rank}: {seen}"
        assert seen.seconds < TIMEOUT_S + MARGIN_S


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_error_names_unit_op_number_and_ranks(outcomes: Callable[[Case], list[Outcome]], case: Case) -> None:
    for rank, seen in enumerate(outcomes(case)):
        assert re.fullmatch(GRAMMAR, seen.text), seen.text
        call = rf"{case.op} \(bulk\) of 'unit\.\d', \d+ bytes, call \d on lane '{case}', as rank {rank} sees it"
        assert re.match(rf"ranks? [\d, ]+ in {call}, must answer within 2 s", seen.text), seen.text


@pytest.mark.parametrize("case", [case for case in CASES if case.op != "broadcast"], ids=str)
def test_every_error_says_what_the_other_ranks_do_instead(
    outcomes: Callable[[Case], list[Outcome]], case: Case
) -> None:
    for rank, seen in enumerate(outcomes(case)):
        other = "1" if rank != 1 else r"\d"
        call = rf"call \d on lane '{case}', {case.op} \(bulk\) of 'unit\.\d', \d+ bytes"
        assert re.search(rf"rank {other} (is|has stopped) in {call}, waiting for rank", seen.text), seen.text
