"""The stand-in itself: it runs streams in any order that events allow, and no other."""

from __future__ import annotations

import pytest
from schedule.virtual_gpu import Choose, MisuseError, VirtualGpu, newest, oldest


def ordered(gpu: VirtualGpu, *, wait: bool, choose: Choose) -> list[str]:
    """A producer on a side stream, a consumer on the default one."""
    log: list[str] = []
    side, event = gpu.Stream(), gpu.Event()
    with gpu.stream(side):
        gpu.launch(lambda: log.append("produced"))
        event.record(gpu.current_stream())
    if wait:
        gpu.current_stream().wait_event(event)
    gpu.launch(lambda: log.append("consumed"))
    gpu.drain(choose)
    return log


@pytest.mark.parametrize("choose", [oldest, newest])
def test_a_wait_orders_two_streams(choose: Choose):
    assert ordered(VirtualGpu(), wait=True, choose=choose) == ["produced", "consumed"]


def test_without_one_some_order_runs_the_consumer_first():
    assert ordered(VirtualGpu(), wait=False, choose=oldest) == ["consumed", "produced"]


def test_an_event_that_was_never_recorded_is_no_event():
    gpu = VirtualGpu()
    with pytest.raises(MisuseError, match="recorded before"):
        gpu.current_stream().wait_event(gpu.Event())


def test_timing_needs_timing_events():
    gpu = VirtualGpu()
    plain, timed = gpu.Event(), gpu.Event(enable_timing=True)
    for event in (plain, timed):
        event.record(gpu.current_stream())
    gpu.drain()
    with pytest.raises(MisuseError, match="timing events"):
        plain.elapsed_time(timed)


def test_streams_that_wait_forever_are_a_fault():
    gpu = VirtualGpu()
    gpu.launch(lambda: None, ready=lambda: False)
    with pytest.raises(MisuseError, match="forever"):
        gpu.drain()
