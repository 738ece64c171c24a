import pytest
import torch

from overlap.bench import timing
from overlap.bench.timing import CpuClock, CudaClock, interleave


class Recorder:
    """A clock that runs and says how many runs it has timed so far."""

    def __init__(self):
        self.count = 0

    def seconds(self, run):
        run()
        self.count += 1
        return float(self.count)


@pytest.fixture
def calls():
    return []


def contenders(calls):
    return [lambda name=name: calls.append(name) for name in "ABC"]


def test_contenders_take_turns(calls):
    interleave(contenders(calls), Recorder(), rounds=3, budget_s=60)
    assert "".join(calls) == "ABC" * 4


def test_the_first_round_is_not_counted(calls):
    times = interleave(contenders(calls), Recorder(), rounds=2, budget_s=60)
    assert times == [[4, 7], [5, 8], [6, 9]]


@pytest.mark.parametrize(("rounds", "made"), [(100, timing.MIN_ROUNDS), (3, 3)])
def test_a_spent_budget_ends_after_the_fewest_rounds(calls, rounds, made):
    times = interleave(contenders(calls), Recorder(), rounds=rounds, budget_s=-1)
    assert [len(each) for each in times] == [made] * 3


def test_the_clock_rests_before_the_time_begins(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert CpuClock().seconds(lambda: now.__setitem__(0, now[0] + 2.5)) == 2.5
    assert now[0] == 2.5 + timing.SETTLE_S


def test_the_device_is_kept_busy_until_its_time_begins(monkeypatch):
    """Against recording stand-ins, on the CPU: fills, begin, the run, end, and only then the wait."""
    done = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            done.append(self)

        def synchronize(self):
            done.append("wait")

        def elapsed_time(self, end):
            assert done[-4:] == [self, "run", end, "wait"]
            return 1500.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(CudaClock, "SCRATCH", 64)
    clock = CudaClock(torch.device("cpu"))
    clock._scratch.fill_(1)
    assert clock.seconds(lambda: done.append("run")) == 1.5
    assert not clock._scratch.any()
