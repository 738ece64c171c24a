"""What every lane must do: checks that test_lanes_cpu.py and test_lanes_cuda.py run against their subjects.

A check is ``check_*(subject)``; it raises where the contract is broken. Work is seen through the subject's log: each
piece of work appends its tag when it really runs, wherever that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pytest

from overlap.errors import DesyncError, StateError
from overlap.schedule.lanes import DONE, ComputeLane, Event, Job, Lane

Run = Callable[[], None]


class Seen(NamedTuple):
    """One call of ``Watch.span``."""

    lane: str
    job: Job
    start: Any
    end: Any


class Spans(list[Seen]):
    """A watch that remembers."""

    def span(self, lane: str, job: Job, start: Any, end: Any) -> None:
        self.append(Seen(lane, job, start, end))


class Subject(Protocol):
    """Two communication lanes and a compute lane of one backend, and how to see what they do."""

    gather: Lane
    reduce: Lane
    compute: ComputeLane
    spans: Spans
    deferred: bool
    """Jobs may run after ``submit`` has returned; otherwise they have run by then."""
    fails_in_lane: bool
    """An error of a job is met where its event is waited for; otherwise at once, by who submits."""

    def work(self, tag: str) -> Run:
        """Work that appends ``tag`` to the log when it runs."""

    def held(self, tag: str) -> tuple[Run, Run]:
        """Work that takes its time, and what lets it end."""

    def finish(self, event: Event) -> None:
        """Wait in the test for an event."""

    def settle(self) -> list[str]:
        """Let everything finish; the log."""


@dataclass
class Entered:
    """A scope that remembers what the log's owner saw."""

    log: list[str] = field(default_factory=list)

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.log.append("enter")
        yield
        self.log.append("leave")


def job(name: str, run: Run | None = None, **fields: Any) -> Job:
    return Job(f"{name}:0", name, "u", run=run, **fields)


def submit(subject: Subject, lane: Lane, tag: str, *waits: Event) -> Event:
    return lane.submit(job(tag, subject.work(tag)), waits)


def check_jobs_of_a_lane_run_in_order(subject: Subject) -> None:
    first, release = subject.held("0")
    subject.gather.submit(job("held", first), ())
    for number in range(1, 5):
        submit(subject, subject.gather, str(number))
    release()
    assert subject.settle() == ["0", "1", "2", "3", "4"]


def check_a_job_starts_after_what_it_waits_for(subject: Subject) -> None:
    first, release = subject.held("produced")
    produced = subject.gather.submit(job("held", first), ())
    submit(subject, subject.reduce, "consumed", produced)
    release()
    assert subject.settle() == ["produced", "consumed"]


def check_a_job_waits_for_all_its_events(subject: Subject) -> None:
    first, release = subject.held("gathered")
    gathered = subject.gather.submit(job("held", first), ())
    computed = submit(subject, subject.compute, "computed")
    submit(subject, subject.reduce, "consumed", computed, gathered)
    release()
    log = subject.settle()
    assert sorted(log) == ["computed", "consumed", "gathered"]
    assert log[-1] == "consumed"


def check_events_order_a_chain_over_all_lanes(subject: Subject) -> None:
    first, release = subject.held("gather")
    gathered = subject.gather.submit(job("held", first), ())
    release()
    subject.compute.wait(gathered, "u")
    computed = submit(subject, subject.compute, "compute")
    reduced = submit(subject, subject.reduce, "reduce", computed)
    submit(subject, subject.gather, "again", reduced)
    assert subject.settle() == ["gather", "compute", "reduce", "again"]


def check_waiting_on_compute_says_whether_it_may_have_waited(subject: Subject) -> None:
    assert subject.compute.wait(DONE, "u") is False
    first, release = subject.held("slow")
    event = subject.gather.submit(job("held", first), ())
    release()
    assert subject.compute.wait(event, "u") is subject.deferred
    assert subject.settle() == ["slow"]


def check_an_event_is_true_only_after_its_job(subject: Subject) -> None:
    first, release = subject.held("slow")
    event = subject.gather.submit(job("held", first), ())
    assert event.done() is not subject.deferred
    release()
    subject.settle()
    assert event.done()


def check_lanes_do_not_hold_each_other_up(subject: Subject) -> None:
    if not subject.deferred:
        return
    first, release = subject.held("slow")
    slow = subject.gather.submit(job("held", first), ())
    subject.finish(submit(subject, subject.reduce, "quick"))
    assert not slow.done()
    release()
    assert subject.settle() == ["quick", "slow"]


def check_events_are_named_by_their_job(subject: Subject) -> None:
    if subject.deferred:
        assert submit(subject, subject.gather, "moved").name == "moved:0"
    subject.settle()


def check_a_job_without_work_makes_its_event_true(subject: Subject) -> None:
    event = subject.gather.submit(job("nothing"), ())
    subject.settle()
    assert event.done()


def check_work_entered_on_compute_comes_first(subject: Subject) -> None:
    submit(subject, subject.compute, "submitted")
    subject.compute.enter()
    submit(subject, subject.compute, "entered")
    assert subject.settle() == ["submitted", "entered"]


def check_work_runs_inside_its_scope(subject: Subject) -> None:
    entered = Entered()
    subject.gather.submit(job("scoped", lambda: entered.log.append("run"), scope=entered.scope()), ())
    subject.settle()
    assert entered.log == ["enter", "run", "leave"]


def check_the_watch_gets_a_span_per_job_with_work(subject: Subject) -> None:
    submit(subject, subject.gather, "a")
    subject.gather.submit(job("nothing"), ())
    submit(subject, subject.compute, "b")
    submit(subject, subject.gather, "c")
    subject.settle()
    kinds = [(seen.lane, seen.job.kind) for seen in subject.spans]
    assert sorted(kinds) == [("compute", "b"), ("gather", "a"), ("gather", "c")]


def check_spans_have_the_length_of_their_job_and_follow_each_other(subject: Subject) -> None:
    first, release = subject.held("slow")
    subject.gather.submit(job("held", first), ())
    submit(subject, subject.gather, "next")
    release()
    subject.settle()
    at = subject.compute.clock.nanoseconds
    held, following = ((at(seen.start), at(seen.end)) for seen in subject.spans)
    assert held[0] < held[1] <= following[0] <= following[1]


def check_an_error_is_met_where_the_event_is_waited_for(subject: Subject) -> None:
    if not subject.fails_in_lane:
        return
    failed = subject.gather.submit(job("broken", _raise), ())
    with pytest.raises(DesyncError, match="event broken:0 must become true, but got ValueError: broken") as caught:
        subject.compute.wait(failed, "u")
    assert isinstance(caught.value.__cause__, ValueError)
    assert failed.done()


def check_an_error_fails_all_that_depends_on_it(subject: Subject) -> None:
    if not subject.fails_in_lane:
        return
    failed = subject.gather.submit(job("broken", _raise), ())
    dependent = submit(subject, subject.reduce, "never", failed)
    independent = submit(subject, subject.reduce, "still")
    for event in (dependent, submit(subject, subject.gather, "never either", dependent)):
        with pytest.raises(DesyncError, match="event broken:0"):
            subject.compute.wait(event, "u")
    subject.compute.wait(independent, "u")
    assert subject.settle() == ["still"]


def check_an_error_without_a_lane_of_its_own_is_met_at_once(subject: Subject) -> None:
    if subject.fails_in_lane:
        return
    with pytest.raises(ValueError, match="broken"):
        subject.gather.submit(job("broken", _raise), ())
    submit(subject, subject.gather, "next")
    assert subject.settle() == ["next"]


def _raise() -> None:
    raise ValueError("broken")


def check_closing_lets_queued_work_finish(subject: Subject) -> None:
    for number in range(3):
        submit(subject, subject.gather, str(number))
    subject.gather.close()
    assert subject.settle() == ["0", "1", "2"]


def check_a_closed_lane_takes_no_job(subject: Subject) -> None:
    for _ in range(2):
        subject.gather.close()
    with pytest.raises(StateError, match="lane gather must be open, but got a closed lane"):
        submit(subject, subject.gather, "late")
    assert subject.settle() == []


CHECKS: dict[str, Callable[[Any], None]] = {
    name.removeprefix("check_"): value for name, value in globals().items() if name.startswith("check_")
}
