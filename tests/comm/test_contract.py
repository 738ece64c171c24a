"""Every implementation of `Communicator` against one contract, on one to four ranks."""

import pytest
from support.carriers import CARRIERS, carried_by
from support.communicator_contract import CHECKS, Subject
from support.ranks import Ranks

from overlap.comm.groups import communicator_for, lane_group
from overlap.comm.process_group import ProcessGroupCommunicator
from overlap.comm.shaped import ShapedCommunicator


def _subject(implementation: str, seed: int) -> Subject:
    if implementation in CARRIERS:
        comm = carried_by(implementation, lambda: communicator_for(None, "contract", "cpu"))
        return Subject(comm, exact=True, seed=seed)
    if implementation == "shaped":
        inner = communicator_for(None, "contract-shaped", "cpu")
        return Subject(ShapedCommunicator(inner, bytes_per_second=1e9), exact=True, seed=seed)
    group = lane_group(None, "contract-group", backend="gloo")
    return Subject(ProcessGroupCommunicator(group, "contract-group"), exact=False, seed=seed)


def _check(implementation: str, check: str, seed: int) -> None:
    CHECKS[check](_subject(implementation, seed))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("implementation", [*CARRIERS, "process_group", "shaped"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_contract(ranks: Ranks, world: int, implementation: str, check: str) -> None:
    ranks(world, _check, implementation, check, seed=world)
