"""A stand-in for ``torch.cuda``: streams are queues that run when the test says so, in an order the test chooses.

    launch(work), Event.record, Stream.wait_event    put a step into a stream, as a CUDA program does; nothing runs
    drain(choose)                                    run all; ``choose`` picks the next of the streams that can go

So any missing wait shows: some order of the streams runs the reader too early. Wrong use is a fault at once: waiting
for or asking an event that was never recorded, timing with events made without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial


class MisuseError(AssertionError):
    """The program under test broke a rule of CUDA that CUDA would let pass."""


class Step:
    """One entry of a stream: runs once ``ready`` says so."""

    def __init__(self, run: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        self.run, self.ready = run, ready


class VirtualStream:
    """An in-order queue."""

    def __init__(self, gpu: VirtualGpu, priority: int = 0) -> None:
        self.priority = priority
        self.steps: deque[Step] = deque()
        gpu.streams.append(self)

    def wait_event(self, event: VirtualEvent) -> None:
        mark = event.recorded()
        self.steps.append(Step(lambda: None, lambda: mark.tick is not None))

    @property
    def runnable(self) -> bool:
        return bool(self.steps) and self.steps[0].ready()


class _Mark:
    """One recording of an event; ``tick`` is when the stream has passed it."""

    tick: int | None = None


class VirtualEvent:
    """Recorded into a stream, true when the stream gets there."""

    def __init__(self, gpu: VirtualGpu, enable_timing: bool = False) -> None:
        self._gpu, self._timing = gpu, enable_timing
        self._mark: _Mark | None = None

    def record(self, stream: VirtualStream) -> None:
        mark = self._mark = _Mark()
        stream.steps.append(Step(lambda: setattr(mark, "tick", self._gpu.tick)))

    def recorded(self) -> _Mark:
        if self._mark is None:
            raise MisuseError("an event must be recorded before anyone waits for it or asks it")
        return self._mark

    def query(self) -> bool:
        return self.recorded().tick is not None

    def synchronize(self) -> None:
        mark = self.recorded()
        self._gpu.synchronized += 1
        self._gpu.run_until(lambda: mark.tick is not None)

    def elapsed_time(self, end: VirtualEvent) -> float:
        start_tick, end_tick = self.recorded().tick, end.recorded().tick
        if not (self._timing and end._timing) or start_tick is None or end_tick is None:
            raise MisuseError("elapsed_time must be asked of timing events that have completed")
        return float(end_tick - start_tick)


Choose = Callable[[Sequence[VirtualStream]], VirtualStream]


def oldest(streams: Sequence[VirtualStream]) -> VirtualStream:
    """The default stream goes first whenever it can."""
    return streams[0]


def newest(streams: Sequence[VirtualStream]) -> VirtualStream:
    """The lanes go first whenever they can."""
    return streams[-1]


class VirtualGpu:
    """The part of ``torch.cuda`` that lanes use. ``Stream`` and ``Event`` are its factories."""

    def __init__(self) -> None:
        self.streams: list[VirtualStream] = []
        self.tick = 0  # steps run so far: one is a millisecond of device time
        self.synchronized = 0
        self.Stream: Callable[..., VirtualStream] = partial(VirtualStream, self)
        self.Event: Callable[..., VirtualEvent] = partial(VirtualEvent, self)
        self._current = self.Stream()

    def current_stream(self) -> VirtualStream:
        return self._current

    @contextmanager
    def stream(self, stream: VirtualStream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def launch(self, work: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        """Put work into the current stream."""
        self._current.steps.append(Step(work, ready))

    def run_until(self, reached: Callable[[], bool], choose: Choose = oldest) -> None:
        while not reached():
            runnable = [stream for stream in self.streams if stream.runnable]
            if not runnable:
                raise MisuseError("streams must not wait for each other forever")
            self.tick += 1
            choose(runnable).steps.popleft().run()

    def drain(self, choose: Choose = oldest) -> None:
        self.run_until(lambda: not any(stream.steps for stream in self.streams), choose)
