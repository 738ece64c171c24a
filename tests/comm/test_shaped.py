import time

import pytest
import torch
from support.ranks import Ranks
from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.comm.groups import communicator_for
from overlap.comm.shaped import Fault, ShapedCommunicator
from overlap.errors import DesyncError

WORLD = 2


def _seconds(comm: Communicator, flat: Tensor) -> float:
    start = time.perf_counter()
    comm.all_reduce(flat, "reduce")
    return time.perf_counter() - start


def _inner() -> Communicator:
    return communicator_for(None, "shaped", "cpu")


def _bandwidth() -> float:
    # 2 ranks, 40 kB all-reduced: 40 kB on the wire per rank.
    return _seconds(ShapedCommunicator(_inner(), bytes_per_second=400e3, latency_s=0.05), torch.zeros(10_000))


def test_a_call_lasts_its_latency_and_its_bytes_over_the_bandwidth(ranks: Ranks) -> None:
    for seconds in ranks(WORLD, _bandwidth):
        assert seconds >= 0.15


def _delays() -> list[float]:
    waits = iter([0.03, 0.0])
    comm = ShapedCommunicator(
        _inner(), jitter=lambda: next(waits), before={"reduce": 0.05}, after={"reduce": 0.04, "gather": 9.0}
    )
    return [_seconds(comm, torch.zeros(4)) for _ in range(2)]


def test_delays_add_up_for_their_kind_only(ranks: Ranks) -> None:
    for first, second in ranks(WORLD, _delays):
        assert first >= 0.12
        assert 0.09 <= second < 5


def _late_start() -> float:
    """A producer that is late leaves the old value in place until it transfers."""
    comm = ShapedCommunicator(_inner(), before={"reduce": 0.1})
    flat = torch.ones(4)
    seen: list[float] = []

    def peek() -> float:
        seen.append(float(flat[0]))
        return 0.0

    ShapedCommunicator(comm, jitter=peek).all_reduce(flat, "reduce")
    assert float(flat[0]) == WORLD
    return seen[0]


def test_the_transfer_comes_after_the_delay(ranks: Ranks) -> None:
    assert ranks(WORLD, _late_start) == [1.0] * WORLD


def _injected() -> str:
    comm = ShapedCommunicator(_inner(), fail_on=[Fault("reduce", call=1)])
    comm.all_reduce(torch.ones(4), "reduce")
    comm.all_reduce(torch.ones(4), "replicate")
    with pytest.raises(DesyncError) as caught:
        comm.all_reduce(torch.ones(4), "reduce")
    comm.all_reduce(torch.ones(4), "reduce")
    return str(caught.value)


def test_a_fault_hits_the_named_call_of_its_kind(ranks: Ranks) -> None:
    for rank, text in enumerate(ranks(WORLD, _injected)):
        assert f"all_reduce (reduce) on lane 'shaped', rank {rank}, must complete, but got an injected" in text
