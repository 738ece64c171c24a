"""Lanes on CUDA: the contract over virtual streams in any order and, where there is a GPU, over real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from schedule.lane_contract import CHECKS, Spans, Subject, job, submit
from schedule.virtual_gpu import Choose, VirtualGpu, newest, oldest

from overlap.schedule.lanes import DONE, Event
from overlap.schedule.lanes_cuda import HIGH_PRIORITY, CudaClock, CudaComputeLane, CudaEvent, CudaLane

SLOW_CYCLES = 50_000_000


class StreamSubject:
    """Lanes over ``torch.cuda`` or its stand-in."""

    deferred = True
    fails_in_lane = False  # launching a kernel fails in the caller

    def __init__(self, cuda: Any) -> None:
        self.cuda, self.spans = cuda, Spans()
        clock = CudaClock(cuda)
        options = {"cuda": cuda, "clock": clock, "watch": self.spans}
        self.gather, self.reduce = CudaLane("gather", **options), CudaLane("reduce", **options)
        self.compute = CudaComputeLane(**options)


class VirtualSubject(StreamSubject):
    """Work is a step of a virtual stream; held work stays at the head of its stream until released."""

    def __init__(self, choose: Choose) -> None:
        super().__init__(VirtualGpu())
        self._choose = choose
        self._log: list[str] = []

    def work(self, tag: str) -> Callable[[], None]:
        return lambda: self.cuda.launch(lambda: self._log.append(tag))

    def held(self, tag: str) -> tuple[Callable[[], None], Callable[[], None]]:
        released: list[bool] = []
        run = lambda: self.cuda.launch(lambda: self._log.append(tag), lambda: bool(released))  # noqa: E731
        return run, lambda: released.append(True)

    def finish(self, event: Event) -> None:
        self.cuda.run_until(event.done, self._choose)

    def settle(self) -> list[str]:
        self.cuda.drain(self._choose)
        return self._log


class RealSubject(StreamSubject):
    """Work appends a number to a tensor on the device; held work spins there for a while."""

    def __init__(self) -> None:
        super().__init__(torch.cuda)
        self._tags: list[str] = []
        self._entries = torch.full((64,), -1, device="cuda")
        self._cursor = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._numbers = torch.arange(64, device="cuda").view(64, 1)
        self._log_once()  # what the first use of these kernels costs belongs to no test

    def work(self, tag: str) -> Callable[[], None]:
        self._tags.append(tag)
        number = len(self._tags) - 1
        return lambda: self._append(number)

    def held(self, tag: str) -> tuple[Callable[[], None], Callable[[], None]]:
        append = self.work(tag)

        def run() -> None:
            torch.cuda._sleep(SLOW_CYCLES)
            append()

        return run, lambda: None

    def finish(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        event.raw.synchronize()

    def settle(self) -> list[str]:
        torch.cuda.synchronize()
        return [self._tags[number] for number in self._entries.tolist() if number >= 0]

    def _append(self, number: int) -> None:
        self._entries.index_copy_(0, self._cursor, self._numbers[number])
        self._cursor.add_(1)

    def _log_once(self) -> None:
        self._append(0)
        torch.cuda._sleep(1)
        self._entries.fill_(-1)
        self._cursor.zero_()
        torch.cuda.synchronize()


@pytest.mark.parametrize("choose", [oldest, newest])
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_contract_on_virtual_streams(check: Callable[[Subject], None], choose: Choose):
    check(VirtualSubject(choose))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_contract_on_a_gpu(check: Callable[[Subject], None]):
    check(RealSubject())


@pytest.fixture
def virtual() -> VirtualSubject:
    return VirtualSubject(oldest)


def test_communication_has_high_priority_and_a_stream_per_lane(virtual: VirtualSubject):
    default, *lanes = virtual.cuda.streams
    assert [stream.priority for stream in lanes] == [HIGH_PRIORITY, HIGH_PRIORITY]
    assert default.priority > HIGH_PRIORITY


def test_the_host_never_waits_inside_a_step(virtual: VirtualSubject):
    before, steps = virtual.cuda.synchronized, virtual.cuda.tick
    gathered = submit(virtual, virtual.gather, "gather", DONE)
    virtual.compute.wait(gathered, "u")
    submit(virtual, virtual.reduce, "reduce", submit(virtual, virtual.compute, "compute"))
    assert (virtual.cuda.synchronized, virtual.cuda.tick) == (before, steps)
    assert virtual.settle() == ["gather", "compute", "reduce"]


def test_work_sees_the_stream_of_its_lane_and_callers_keep_theirs(virtual: VirtualSubject):
    default, gather, _ = virtual.cuda.streams
    seen: list[object] = []
    virtual.gather.submit(job("look", lambda: seen.append(virtual.cuda.current_stream())), ())
    assert seen == [gather]
    assert virtual.cuda.current_stream() is default


def test_compute_is_whatever_stream_the_caller_uses(virtual: VirtualSubject):
    mine = virtual.cuda.Stream()
    gathered = submit(virtual, virtual.gather, "gather")
    with virtual.cuda.stream(mine):
        virtual.compute.wait(gathered, "u")
        submit(virtual, virtual.compute, "compute")
    assert len(mine.steps) > 0
    assert virtual.settle() == ["gather", "compute"]


def test_marks_lie_on_the_axis_of_the_host_clock(virtual: VirtualSubject):
    clock = virtual.compute.clock
    first = clock.mark()
    virtual.cuda.launch(lambda: None)
    second = clock.mark()
    assert clock.nanoseconds(second) - clock.nanoseconds(first) == 2_000_000  # the work and the mark, 1 ms each


def test_without_a_watch_no_timing_events_are_made():
    gpu = VirtualGpu()
    clock = CudaClock(gpu)
    lane = CudaLane("gather", cuda=gpu, clock=clock)
    clock.mark = None  # would be called
    lane.submit(job("move", lambda: None), ())
    gpu.drain()
