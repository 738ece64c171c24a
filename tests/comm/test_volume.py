import threading

import pytest

from overlap.comm.volume import (
    Collective,
    WireCounter,
    WireTotals,
    algbw,
    bus_factor,
    busbw,
    total_wire_bytes,
    wire_bytes,
)


@pytest.mark.parametrize(
    ("op", "per_rank"),
    [("all_gather", 750), ("reduce_scatter", 750), ("all_reduce", 1500), ("all_to_all", 750), ("broadcast", 750)],
)
def test_each_of_four_ranks_sends_its_share(op: Collective, per_rank: int) -> None:
    assert wire_bytes(op, 1000, 4) == per_rank
    assert total_wire_bytes(op, 1000, 4) == 4 * per_rank


def test_one_rank_sends_nothing() -> None:
    assert wire_bytes("all_reduce", 1000, 1) == 0


def test_uneven_totals_are_exact() -> None:
    assert total_wire_bytes("all_reduce", 10, 3) == 40
    assert wire_bytes("all_reduce", 10, 3) == 13


@pytest.mark.parametrize(
    ("op", "factor"),
    [("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("all_reduce", 14 / 8), ("all_to_all", 7 / 8), ("broadcast", 1)],
)
def test_bus_bandwidth_as_nccl_tests_defines_it(op: Collective, factor: float) -> None:
    assert bus_factor(op, 8) == factor
    assert algbw(800, 2.0) == 400
    assert busbw(op, 800, 2.0, 8) == 400 * factor


def test_counter_tells_kinds_apart_and_differences_leave_out_what_did_not_change() -> None:
    counter = WireCounter(measured=True)
    counter.add("gather", 10)
    before = counter.snapshot()
    counter.add("reduce", 5)
    counter.add("reduce", 7)
    spent = counter.snapshot() - before
    assert spent == WireTotals(sent={"reduce": 12}, calls={"reduce": 2})
    assert spent.sent_bytes == 12
    assert counter.snapshot().sent_bytes == 22


def test_a_snapshot_does_not_change_afterwards() -> None:
    counter = WireCounter(measured=True)
    before = counter.snapshot()
    counter.add("gather", 10)
    assert before == WireTotals()


def test_counter_loses_nothing_between_threads() -> None:
    counter = WireCounter(measured=True)
    threads = [threading.Thread(target=_add_often, args=(counter,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.snapshot() == WireTotals(sent={"x": 12000}, calls={"x": 4000})


def _add_often(counter: WireCounter) -> None:
    for _ in range(1000):
        counter.add("x", 3)
