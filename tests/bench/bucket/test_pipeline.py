"""The pattern of packing, leaving and waiting, and what is made of its spans."""

import threading
import time

import pytest
import torch
from schedule.virtual_gpu import VirtualGpu, newest, oldest

from overlap.bench.bucket.pipeline import Lanes, Pipeline
from overlap.bench.bucket.results import Step
from overlap.bench.bucket.work import Products

CPU = torch.device("cpu")
SHAPE = (2, 8)


class Wire:
    """Keeps each bucket until it is let go."""

    def __init__(self, seconds=0.0):
        self.device, self.seconds = CPU, seconds
        self.on_wire = self.most = self.sent = 0
        self.threads, self._lock = set(), threading.Lock()

    def reduce_scatter(self, bucket, out):
        with self._lock:
            self.on_wire += 1
            self.most = max(self.most, self.on_wire)
        self.threads.add(threading.current_thread().name)
        before = bucket.clone()
        time.sleep(self.seconds)
        assert torch.equal(before, bucket), "packed while it was on the wire"
        out.copy_(bucket.sum(0))
        with self._lock:
            self.on_wire -= 1
            self.sent += 1

    def all_reduce(self, flat):
        self.reduce_scatter(flat.view(SHAPE), torch.empty(SHAPE[1]))


@pytest.fixture
def lanes():
    opened = Lanes(CPU)
    yield opened
    opened.close()


@pytest.mark.parametrize("op", ["reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_every_bucket_leaves_once_on_the_lane_and_none_is_packed_on_the_way(lanes, op, in_flight):
    wire = Wire(0.002)
    Pipeline(lanes, wire, op, SHAPE, torch.float32, in_flight).step([lambda: None] * 7)
    assert (wire.sent, wire.most, wire.on_wire) == (7, 1, 0)
    assert wire.threads == {"overlap-reduce"}


def _step(lanes, wire, in_flight, shares):
    pipeline = Pipeline(lanes, wire, "reduce_scatter", SHAPE, torch.float32, in_flight)
    lanes.take()
    begin = time.perf_counter()
    pipeline.step(shares)
    return Step.of(time.perf_counter() - begin, lanes.take())


def test_what_compute_hides_is_not_exposed(lanes):
    """Four buckets of 30 ms. Beside no compute all of it is exposed, beside 40 ms before each only the last."""
    alone = _step(lanes, Wire(0.03), 2, [None] * 4)
    beside = _step(lanes, Wire(0.03), 2, [lambda: time.sleep(0.04)] * 4)
    assert len(alone.call_s) == 4
    assert alone.exposed_s > 0.8 * alone.wire_s
    assert alone.compute_s == 0
    assert 0.02 < beside.exposed_s < 0.7 * beside.wire_s
    assert beside.compute_s >= 4 * 0.04
    assert beside.wall_s < alone.wire_s + beside.compute_s


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_bucket_is_packed_as_soon_as_one_is_free(lanes, in_flight):
    pipeline = Pipeline(lanes, Wire(0.03), "reduce_scatter", SHAPE, torch.float32, in_flight)
    pipeline.step([None] * 4)
    spans = lanes.take()
    packed, left = [start for start, _ in spans["pack"]], [end for _, end in spans["reduce"]]
    assert all(packed[number + in_flight] >= left[number] for number in range(4 - in_flight))
    assert all(packed[number + in_flight - 1] < left[number] for number in range(4 - in_flight + 1))


class Streamed:
    """Carries buckets on the virtual device's current stream."""

    device = CPU

    def __init__(self, gpu, log):
        self._gpu, self._log = gpu, log

    def reduce_scatter(self, bucket, out):
        self._gpu.launch(lambda: self._log.append(("left", bucket.data_ptr())))


@pytest.mark.parametrize("choose", [oldest, newest])
@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_on_streams_in_any_order_no_bucket_leaves_unpacked_or_is_packed_on_the_way(monkeypatch, choose, in_flight):
    gpu, log = VirtualGpu(), []
    lanes = Lanes(torch.device("cuda"), gpu)
    pack = lambda target, _: gpu.launch(lambda: log.append(("packed", target.data_ptr())))  # noqa: E731
    monkeypatch.setattr("overlap.bench.bucket.pipeline._copy", pack)
    Pipeline(lanes, Streamed(gpu, log), "reduce_scatter", SHAPE, torch.float32, in_flight).step([None] * 7)
    gpu.launch(lambda: log.append(("end", 0)))
    gpu.drain(choose)
    for bucket in {bucket for what, bucket in log if what != "end"}:
        own = [what for what, other in log if other == bucket]
        assert own == ["packed", "left"] * (len(own) // 2)
    assert log[-1] == ("end", 0), "compute has not waited for the last bucket"
    assert {kind: len(spans) for kind, spans in lanes.take().items()} == {"compute": 0, "pack": 7, "reduce": 7}


def test_products_are_spread_evenly():
    work = Products(4, CPU)
    done = []
    work.run = done.append
    shares = work.shares(5, 7)
    for share in shares:
        share and share()
    assert done == [1, 1, 2, 1, 2]
    assert [share is None for share in work.shares(4, 2)] == [True, False, True, False]


def test_figures_of_a_step():
    spans = {"compute": [(0, 10), (30, 40)], "pack": [(10, 12)], "reduce": [(5, 20), (35, 60)]}
    step = Step.of(7e-8, spans)
    assert step == Step(wall_s=7e-8, compute_s=2e-8, wire_s=4e-8, exposed_s=2.8e-8, call_s=(1.5e-8, 2.5e-8))
