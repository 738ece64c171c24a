"""Lanes on CPU: the contract on threads and inline, and what only threads have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from schedule.lane_contract import CHECKS, Spans, Subject, job

from overlap import nvtx
from overlap.errors import DesyncError, StateError
from overlap.schedule.lanes import Event, Lane
from overlap.schedule.lanes_cpu import HostComputeLane, HostEvent, InlineLane, ThreadLane, wait_host

TIMEOUT_S = 20.0


class HostSubject:
    """Work is a Python function; held work waits for a gate, which also opens by itself where nothing else could."""

    def __init__(self, make: Callable[..., Lane], *, deferred: bool) -> None:
        self.spans = Spans()
        self.gather, self.reduce = (make(name, watch=self.spans, timeout_s=TIMEOUT_S) for name in ("gather", "reduce"))
        self.compute = HostComputeLane(watch=self.spans, timeout_s=TIMEOUT_S)
        self.deferred = self.fails_in_lane = deferred
        self._log: list[str] = []
        self._gates: list[threading.Event] = []

    def work(self, tag: str) -> Callable[[], None]:
        return lambda: self._log.append(tag)

    def held(self, tag: str) -> tuple[Callable[[], None], Callable[[], None]]:
        gate = threading.Event()
        self._gates.append(gate)

        def run() -> None:
            if self.deferred:
                gate.wait(TIMEOUT_S)
            time.sleep(0.02)  # whoever does not wait for this is sure to be earlier
            self._log.append(tag)

        return run, gate.set

    def finish(self, event: Event) -> None:
        wait_host(event, TIMEOUT_S, "test")

    def settle(self) -> list[str]:
        self.close()
        return self._log

    def close(self) -> None:
        for gate in self._gates:
            gate.set()
        for lane in (self.gather, self.reduce):
            lane.close()


@pytest.fixture(params=["thread", "inline"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    threads = request.param == "thread"
    host = HostSubject(ThreadLane if threads else InlineLane, deferred=threads)
    yield host
    host.close()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_contract(subject: Subject, check: Callable[[Subject], None]):
    check(subject)


@pytest.fixture
def lane() -> Iterator[ThreadLane]:
    lane = ThreadLane("gather", timeout_s=0.05)
    yield lane
    lane.close()


def test_jobs_run_in_a_thread_named_after_the_lane(lane: ThreadLane):
    names: list[str] = []
    event = lane.submit(job("look", lambda: names.append(threading.current_thread().name)), ())
    wait_host(event, TIMEOUT_S, "look")
    assert names == ["overlap-gather"]


def test_prepare_runs_first_in_the_thread():
    where: list[str] = []
    note = lambda: where.append(threading.current_thread().name)  # noqa: E731
    lane = ThreadLane("reduce", prepare=note)
    lane.submit(job("look", note), ())
    lane.close()
    assert where == ["overlap-reduce"] * 2


def test_closing_ends_the_thread(lane: ThreadLane):
    lane.close()
    assert "overlap-gather" not in {thread.name for thread in threading.enumerate()}


def test_a_wait_that_takes_too_long_names_event_and_job(lane: ThreadLane):
    event = lane.submit(job("gather"), [HostEvent("reduced:3")])
    with pytest.raises(DesyncError, match=r"gather u \(event reduced:3\) must finish within 0.05 s, but got no answer"):
        wait_host(event, TIMEOUT_S, "forward")


def test_compute_does_not_wait_forever_either():
    compute = HostComputeLane(timeout_s=0.01)
    with pytest.raises(DesyncError, match=r"block 3 \(event gathered:3\) must finish within 0.01 s"):
        compute.wait(HostEvent("gathered:3"), "block 3")


class Ranges:
    """Stands in for the NVTX domain."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def get_event_attributes(self, message: str, color: int, category: str, payload: int) -> str:
        return message

    def push_range(self, attributes: str) -> None:
        self.said.append(attributes)

    def pop_range(self) -> None:
        self.said.append("pop")


def test_a_wait_of_the_caller_is_a_range_of_its_own(monkeypatch: pytest.MonkeyPatch):
    ranges = Ranges()
    monkeypatch.setattr(nvtx, "_domain", ranges)
    compute, event = HostComputeLane(timeout_s=TIMEOUT_S), HostEvent("gathered:3")
    threading.Timer(0.02, event.set).start()
    assert compute.wait(event, "block 3")
    assert ranges.said == ["stall block 3", "pop"]
    assert not compute.wait(event, "block 3")
    assert ranges.said == ["stall block 3", "pop"]


def test_our_own_errors_come_through_as_they_are(lane: ThreadLane):
    def fail() -> None:
        raise StateError("ours")

    event = lane.submit(job("broken", fail), ())
    with pytest.raises(StateError, match="ours"):
        wait_host(event, TIMEOUT_S, "u")


def test_a_finished_job_keeps_nothing_alive(lane: ThreadLane):
    """Tensors that a job holds on to must not live until the next one arrives."""

    class Tensor:
        def __del__(self) -> None:
            freed.set()

    freed = threading.Event()
    tensor = Tensor()
    lane.submit(job("use", lambda held=tensor: None), ())
    del tensor
    assert freed.wait(TIMEOUT_S)
