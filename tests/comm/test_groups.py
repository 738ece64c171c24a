import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.ranks import Ranks

from overlap import _compat
from overlap.comm.collective import Communicator
from overlap.comm.groups import communicator_for, lane_group, transport
from overlap.comm.pairwise import PairwiseCommunicator
from overlap.errors import ConfigError, StateError


def _count_groups() -> tuple[int, int]:
    lane_group(None, "cycle", backend="gloo")
    groups = dist.distributed_c10d._world.pg_map
    before = len(groups)
    for _ in range(20):
        communicator_for(None, "cycle", "cpu")
    same = len(groups)
    lane_group(None, "another", backend="gloo")
    return same - before, len(groups) - before


def test_twenty_engines_share_the_groups_of_their_lanes(ranks: Ranks) -> None:
    assert ranks.fresh(2, _count_groups) == [(0, 1)] * 2


def _groups_over_the_same_ranks() -> bool:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    shared = lane_group(first, "x", backend="gloo")
    dist.destroy_process_group(first)
    return lane_group(second, "x", backend="gloo") is shared


def test_base_groups_over_the_same_ranks_share_lanes(ranks: Ranks) -> None:
    assert ranks.fresh(2, _groups_over_the_same_ranks) == [True, True]


def _lane_timeout() -> timedelta | None:
    return _compat.group_timeout(lane_group(None, "slow"))


def test_a_lane_has_the_timeout_of_its_base(ranks: Ranks) -> None:
    assert ranks.fresh(2, _lane_timeout, group_timeout_s=17) == [timedelta(seconds=17)] * 2


def _reinitialise() -> list[float]:
    stale = lane_group(None, "x")
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    with pytest.raises(StateError, match="init_process_group"):
        lane_group(None, "x")
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=world)
    assert lane_group(None, "x") is not stale
    return _sum_of_ranks(communicator_for(None, "x", "cpu"))


def _sum_of_ranks(comm: Communicator) -> list[float]:
    flat = torch.full((2,), float(dist.get_rank()))
    comm.all_reduce(flat, "reduce")
    return flat.tolist()


def test_groups_of_a_destroyed_torch_distributed_are_not_reused(ranks: Ranks) -> None:
    assert ranks.fresh(2, _reinitialise) == [[1.0, 1.0]] * 2


def _destroy_lane() -> None:
    dist.destroy_process_group(lane_group(None, "gone"))
    with pytest.raises(StateError, match="group of lane 'gone' must be initialised"):
        lane_group(None, "gone")


def test_a_destroyed_lane_is_not_handed_out(ranks: Ranks) -> None:
    ranks.fresh(2, _destroy_lane)


def _sum_in_halves() -> list[float]:
    halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return _sum_of_ranks(communicator_for(halves[dist.get_rank() % 2], "half", "cpu"))


def test_lanes_of_a_part_of_the_ranks(ranks: Ranks) -> None:
    assert ranks.fresh(4, _sum_in_halves) == [[2.0, 2.0], [4.0, 4.0]] * 2


def _refuse() -> None:
    with pytest.raises(ConfigError, match=r"device type must be one of \['cpu', 'cuda'\], but got tpu"):
        communicator_for(None, "x", "tpu")


def test_unknown_devices_are_refused(ranks: Ranks) -> None:
    ranks(1, _refuse)


def _repeat(comm: Communicator, index: int) -> None:
    """Forty sums that only communicator `index` has; on every other rank the other one starts first."""
    time.sleep(0.1 * ((index + comm.rank) % 2))
    for step in range(40):
        base = torch.arange(5000, dtype=torch.float32) + step + 1000 * index
        flat = base + comm.rank
        comm.all_reduce(flat, "reduce")
        assert torch.equal(flat, comm.world * base + sum(range(comm.world)))


def _in_threads(comms: list[Communicator]) -> None:
    with ThreadPoolExecutor(len(comms)) as threads:
        for done in [threads.submit(_repeat, comm, index) for index, comm in enumerate(comms)]:
            done.result()


def _two_lanes() -> None:
    _in_threads([communicator_for(None, lane, "cpu") for lane in ("gather", "reduce")])


def _two_communicators_on_one_group() -> None:
    group = lane_group(None, "shared")
    _in_threads([PairwiseCommunicator(group, "shared") for _ in range(2)])


@pytest.mark.parametrize("crossing", [_two_lanes, _two_communicators_on_one_group])
def test_lanes_do_not_interfere(ranks: Ranks, crossing: Callable[[], None]) -> None:
    ranks(3, crossing)


def _open_through_a_transport() -> tuple[list[tuple[str, list[int]]], bool, bool]:
    asked: list[tuple[str, list[int]]] = []

    def make(lane: str, members: Sequence[int], usual: Callable[[], Communicator]) -> Communicator:
        asked.append((lane, list(members)))
        return usual()

    with transport(make):
        inside = communicator_for(None, "carried", "cpu")
    communicator_for(None, "carried", "cpu")
    return asked, isinstance(inside, PairwiseCommunicator), len(asked) == 1


def test_within_a_transport_it_opens_communicators_and_not_after(ranks: Ranks) -> None:
    assert ranks(2, _open_through_a_transport) == [([("carried", [0, 1])], True, True)] * 2
