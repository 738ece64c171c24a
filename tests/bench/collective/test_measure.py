"""Times agree with a loop that shares nothing with the bench, and rows hold what ranks have told."""

import time
from statistics import median

import pytest
import torch
import torch.distributed as dist
from schedule.virtual_gpu import VirtualGpu
from support.ranks import Ranks

from overlap.bench.collective.clock import CudaStopwatch
from overlap.bench.collective.measure import Bench
from overlap.bench.collective.results import Figures
from overlap.bench.collective.settings import CollectiveSettings
from overlap.bench.collective.transports import open_transport
from overlap.comm.groups import control_channel

SIZE = 4 << 20
ROUNDS = 5


def _independent(call) -> float:
    """As nccl-tests: so many calls between two looks at the clock."""
    call()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(8):
        call()
    return (time.perf_counter() - begin) / 8


def _both_ways():
    settings = CollectiveSettings(
        collectives=("all_gather", "all_reduce"),
        transports=("gloo",),
        min_bytes=SIZE,
        max_bytes=SIZE,
        iters=8,
    )
    transport = open_transport("gloo", torch.device("cpu"), "sum", "measure")
    bench = Bench(settings, {"gloo": transport}, control_channel(None))
    whole, part = torch.ones(SIZE // 4), torch.ones(SIZE // 8)
    calls = {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "all_reduce": lambda: dist.all_reduce(whole),
    }
    ratios = {}
    for op, call in calls.items():
        pairs = []
        for _ in range(ROUNDS):
            ((row,),) = bench.rows(op, "float")
            figures = row.out_of_place if row.in_place is None or op != "all_reduce" else row.in_place
            pairs.append(figures.time_us / 1e6 / _independent(call))
            assert row.out_of_place.wrong == 0
        ratios[op] = median(pairs)
    return ratios


@pytest.mark.filterwarnings("default")
def test_an_independent_loop_takes_as_long(ranks: Ranks):
    """Within a factor of 2, by the median of interleaved rounds: other processes share the cores."""
    for ratios in ranks(2, _without_warnings, _both_ways.__name__):
        assert all(0.5 < ratio < 2 for ratio in ratios.values()), ratios


def _without_warnings(name):
    """The plain names are deprecated in newer torch, which is no matter of this test."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return globals()[name]()


class Slow:
    """Takes longer on one rank, and returns what it has."""

    def __init__(self, inner, seconds):
        self.device, self._inner, self._seconds = inner.device, inner, seconds

    def all_reduce(self, flat):
        self._inner.all_reduce(flat)
        time.sleep(self._seconds)


def _one_is_slow(seconds):
    settings = CollectiveSettings(
        collectives=("all_reduce",),
        transports=("gloo",),
        min_bytes=1024,
        max_bytes=2048,
        step_factor=2,
        iters=3,
        check=0,
    )
    inner = open_transport("gloo", torch.device("cpu"), "sum", "measure-slow")
    transports = {"plain": inner, "slow": Slow(inner, seconds * (1 + dist.get_rank()))}
    bench = Bench(settings, transports, control_channel(None))
    return [[(row.transport, row.size, row.out_of_place) for row in rows] for rows in bench.rows("all_reduce", "float")]


def test_all_ranks_get_the_same_rows_with_the_mean_of_their_times(ranks: Ranks):
    told = ranks(2, _one_is_slow, 0.02)
    assert told[0] == told[1]
    assert [[(name, size) for name, size, _ in rows] for rows in told[0]] == [
        [("plain", 1024), ("slow", 1024)],
        [("plain", 2048), ("slow", 2048)],
    ]
    for rows in told[0]:
        figures = rows[1][2]
        assert figures.time_us >= 1e6 * 0.03
        assert figures.min_us <= figures.time_us <= figures.max_us
        assert figures.wrong is None


def test_on_cuda_calls_are_timed_on_the_stream_and_awaited_at_the_end():
    gpu = VirtualGpu()
    watch = CudaStopwatch(gpu)
    for steps in (3, 1):
        watch.time(lambda steps=steps: [gpu.launch(lambda: None) for _ in range(steps)])
    assert gpu.synchronized == 0
    assert watch.seconds() == [pytest.approx(4e-3), pytest.approx(2e-3)], "a step is a millisecond, an event one, too"
    assert gpu.synchronized == 1
    assert CudaStopwatch(gpu).seconds() == []


def test_figures_are_the_median_over_calls_of_the_mean_over_ranks():
    seconds = [[1.0, 2.0, 9.0], [3.0, 4.0, 9.0]]
    figures = Figures.of("all_reduce", 6_000_000_000, 3, seconds, 7)
    assert (figures.time_us, figures.min_us, figures.max_us) == (3e6, 2e6, 9e6)
    assert (figures.algbw_gbps, figures.wrong) == (2.0, 7)
    assert figures.busbw_gbps == pytest.approx(2.0 * 2 * 2 / 3)
