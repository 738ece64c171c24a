"""Ranks of one host exchange through memory that they share."""

import os
import re
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.carriers import carried_by
from support.clear_error import GRAMMAR
from support.ranks import Ranks

from overlap.comm import same_host
from overlap.comm.collective import Communicator
from overlap.comm.groups import communicator_for, lane_group
from overlap.comm.message import Message, Tagged
from overlap.comm.same_host import RING_BYTES, SameHost, find_same_host
from overlap.errors import ConfigError, DesyncError

pytestmark = pytest.mark.skipif(same_host.extension is None, reason="overlap._shared was not built")


def _found(mode: str, hosts: list[int]) -> SameHost:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAP_SHARED_MEMORY", mode)
        patch.setattr(same_host, "_host", lambda: hosts[dist.get_rank()])
        return find_same_host(lane_group(None, "found", backend="gloo"))


def _neighbours(mode: str, hosts: list[int]) -> set[int]:
    return set(_found(mode, hosts).ranks)


def test_ranks_of_a_host_find_each_other_and_no_others(ranks: Ranks) -> None:
    assert ranks(4, _neighbours, "auto", [7, 8, 7, 7]) == [{2, 3}, set(), {0, 3}, {0, 2}]


def test_off_shares_nothing(ranks: Ranks) -> None:
    assert ranks(2, _neighbours, "off", [7, 7]) == [set(), set()]


def _only_rank_1_shares() -> set[int]:
    return _neighbours("auto" if dist.get_rank() == 1 else "off", [7, 7])


def test_a_pair_shares_only_if_both_want_to(ranks: Ranks) -> None:
    assert ranks(2, _only_rank_1_shares) == [set(), set()]


def _insists() -> str:
    with pytest.raises(ConfigError) as caught:
        _neighbours("on", [7, 8])
    return str(caught.value)


def test_on_names_the_ranks_that_cannot(ranks: Ranks) -> None:
    for text in ranks(2, _insists):
        assert "ranks 0 and 1 that share none" in text
        assert re.fullmatch(GRAMMAR, text), text


def _an_unknown_mode() -> str:
    with pytest.raises(ConfigError) as caught:
        _neighbours("maybe", [7, 7])
    return str(caught.value)


def test_unknown_words_are_refused(ranks: Ranks) -> None:
    assert "must be one of auto, on, off, but got maybe" in ranks(2, _an_unknown_mode)[0]


def test_processes_of_this_machine_are_of_one_host() -> None:
    assert same_host._host() == same_host._host()
    assert all(Path(path).exists() for path in same_host._IDENTITY)


def _values(source: int, target: int, index: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1_000_003 * source + 1009 * target + index)
    return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)


def _exchange_many(sizes: list[int]) -> None:
    """Every rank to every other one, both ways at once, more than the rings hold, at odd addresses."""
    port, me = _found("auto", [7] * dist.get_world_size()), dist.get_rank()
    receives, sends = [], []
    for peer in sorted(port.ranks):
        for index, size in enumerate(sizes):
            target = torch.full((size + 1,), 255, dtype=torch.uint8)[1:]
            receives.append(Tagged(Message(target, peer, index), 1 + index))
            sends.append(Tagged(Message(_values(me, peer, index, size), peer, index), 1 + index))
    assert port.exchange(receives, sends, 30.0) == {}
    for each in receives:
        message = each.message
        assert torch.equal(message.tensor, _values(message.peer, me, each.tag - 1, message.tensor.numel()))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_messages_of_all_sizes_arrive(ranks: Ranks, world: int) -> None:
    edges = [1, 15, 63, 65, RING_BYTES - 17, RING_BYTES - 16, RING_BYTES, RING_BYTES + 1]
    ranks(world, _exchange_many, [*edges, 3 * RING_BYTES + 5, *torch.randint(1, 99_999, (20,)).tolist()])


def _one_way() -> None:
    """A rank that only sends is through when all has been read, and not before."""
    port, me = _found("auto", [7, 7]), dist.get_rank()
    message = [Tagged(Message(torch.full((8,), me, dtype=torch.uint8), 1 - me), 5)]
    if me == 0:
        start = time.monotonic()
        assert port.exchange([], message, 30.0) == {}
        assert time.monotonic() - start > 0.15
    else:
        time.sleep(0.2)
        assert port.exchange(message, [], 30.0) == {}
        assert not message[0].message.tensor.any()
    dist.barrier()


def test_what_was_sent_has_been_read(ranks: Ranks) -> None:
    ranks(2, _one_way)


def _rank_1_closes() -> tuple[str, float]:
    comm = carried_by("memory", lambda: communicator_for(None, "reduce", "cpu"))
    if comm.rank == 1:
        time.sleep(0.1)
        return "", 0.0  # and lets go of its communicator
    start = time.monotonic()
    with pytest.raises(DesyncError) as caught:
        comm.all_reduce(torch.ones(100), "reduce")
    return str(caught.value), time.monotonic() - start


def test_who_waits_for_a_rank_that_lets_go_learns_so_at_once(ranks: Ranks) -> None:
    text, seconds = ranks.fresh(2, _rank_1_closes, group_timeout_s=60)[0]
    assert text.startswith("rank 1 in all_reduce (reduce), 400 bytes, call 0 on lane 'reduce'")
    assert "must answer in time" in text
    assert "it has let go of the model, or of its communicator" in text
    assert seconds < 10


def _a_child_ends() -> float:
    """A fork, as a data loader makes it, must neither end the exchange nor keep its memory."""
    comm: Communicator = carried_by("memory", lambda: communicator_for(None, "reduce", "cpu"))
    child = os.fork()
    if child == 0:
        del comm
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child crashed"
    ones = torch.ones(4)
    comm.all_reduce(ones, "reduce")
    return ones.sum().item()


def test_a_forked_child_leaves_it_alone(ranks: Ranks) -> None:
    assert ranks.fresh(2, _a_child_ends) == [8.0, 8.0]


def _shared_now() -> int:
    return sum("memfd:overlap" in line for line in Path("/proc/self/maps").read_text().splitlines())


def _open_and_close() -> list[int]:
    counts = [_shared_now()]
    for _ in range(3):
        comm = carried_by("memory", lambda: communicator_for(None, "cycle", "cpu"))
        comm.all_reduce(torch.ones(4), "reduce")
        counts.append(_shared_now())
        del comm
        counts.append(_shared_now())
    return counts


def test_memory_goes_with_the_communicator(ranks: Ranks) -> None:
    for counts in ranks.fresh(2, _open_and_close):
        assert counts == [0, *[2, 0] * 3]  # this rank's own segment and the other's


def _rank_1_fails() -> str:
    """Rank 1 waits for rank 2, which is silent; rank 0 waits for rank 1."""
    port, me = _found("auto", [7] * 3), dist.get_rank()
    message = torch.zeros(8, dtype=torch.uint8)
    if me == 2:
        dist.barrier()
        return ""
    wrong = port.exchange([Tagged(Message(message, me + 1), 1)], [], 0.3 if me == 1 else 30.0)
    if me == 1:
        port.give_up()
    dist.barrier()
    return str(wrong[me + 1])


def test_a_failure_is_passed_on(ranks: Ranks) -> None:
    first, second, _ = ranks(3, _rank_1_fails)
    assert first == "its own call has failed"
    assert second == "no message has come or gone in time"


def _one_is_silent() -> float:
    """Rank 1 says nothing; rank 2 sends now and then: that is no answer of rank 1."""
    port, me = _found("auto", [7] * 3), dist.get_rank()
    count, spell_s = 8, 0.3
    messages = [torch.zeros(8, dtype=torch.uint8) for _ in range(count)]
    seconds = 0.0
    if me == 0:
        start = time.monotonic()
        wanted = [Tagged(Message(message, 2, n), n) for n, message in enumerate(messages)]
        wrong = port.exchange([*wanted, Tagged(Message(messages[0], 1), 9)], [], 2 * spell_s)
        assert set(wrong) == {1}
        seconds = time.monotonic() - start
    elif me == 2:
        for n, message in enumerate(messages):
            time.sleep(spell_s)
            port.exchange([], [Tagged(Message(message, 0, n), n)], 30.0)
    dist.barrier()
    return seconds


def test_who_is_silent_is_late_whatever_others_do(ranks: Ranks) -> None:
    ranks(3, _one_is_silent)


def _misuses() -> list[str]:
    found = _found("auto", [7, 7])
    port = found._port
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            port.interrupt()
            port.exchange([], [], 1.0)
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    texts = [str(os.waitpid(child, 0)[1]), os.read(read, 100).decode()]
    message = torch.zeros(1, dtype=torch.uint8)
    row = [(1 - dist.get_rank(), 1, message.data_ptr(), 1)]
    first = threading.Thread(target=port.exchange, args=(row, [], 30.0))
    first.start()
    time.sleep(0.2)
    with pytest.raises(RuntimeError) as caught:
        port.exchange([], [], 1.0)
    port.interrupt()
    first.join()
    dist.barrier()
    return [*texts, str(caught.value)]


def test_misuse_is_refused(ranks: Ranks) -> None:
    for status, forked, twice in ranks.fresh(2, _misuses):
        assert status == "0"
        assert "belongs to the parent process" in forked
        assert "one thread at a time" in twice
