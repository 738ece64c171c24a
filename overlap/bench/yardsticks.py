"""What this machine's memory can do, measured in the same rounds and over as many bytes as the op beside it.

    copy    c = a            1 read, 1 write
    triad   c = a + 3 b      2 reads, 1 write
    read    max(a)           1 read
    update  a *= 1           1 read, 1 write of the same place

Bytes are counted as for the ops: what the code reads and writes. A CPU that first fetches each line it will write
moves a third or a half more for copy and triad, and nothing more for update.
"""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from overlap.bench.case import Yardstick
from overlap.bench.timing import Clock, Run, interleave

SKEW = 272
"""Elements between the parts of the buffer: at a power of two apart, reads and writes would meet in the caches."""

PROBES = 5


@dataclass(frozen=True)
class Measure:
    """One way to move memory."""

    run: Run
    bytes: int


class Yardsticks:
    """The best honest way for each kind of traffic, chosen once by a few rounds of its own."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self._device, self._clock = device, clock
        self._memory = torch.empty(0, device=device)
        self._chosen: dict[Yardstick, str] = {}
        self._threads = ThreadPoolExecutor(torch.get_num_threads())

    @property
    def chosen(self) -> dict[Yardstick, str]:
        """Which candidate won, by kind."""
        return dict(self._chosen)

    def of(self, nbytes: int) -> dict[Yardstick, Measure]:
        """Return a measure of each kind that moves about ``nbytes``."""
        candidates = self._candidates(max(nbytes // 4, 64))
        if not self._chosen:
            self._chosen = {kind: self._best(ways) for kind, ways in candidates.items()}
        return {kind: candidates[kind][name] for kind, name in self._chosen.items()}

    def _candidates(self, elements: int) -> dict[Yardstick, dict[str, Measure]]:
        whole, (half, other), thirds = (self._parts(elements, count) for count in (1, 2, 3))
        (a, b, c), only = thirds, whole[0]
        copies = {"torch copy_": Measure(lambda: other.copy_(half), 2 * half.nbytes)}
        if self._device.type == "cpu":
            copies["memmove"] = Measure(partial(self._memmove, half, other), 2 * half.nbytes)
        return {
            "copy": copies,
            "triad": {"torch add(alpha)": Measure(partial(torch.add, a, b, alpha=3, out=c), 3 * a.nbytes)},
            "read": {
                "torch amax": Measure(only.amax, only.nbytes),
                "torch sum": Measure(only.sum, only.nbytes),
            },
            "update": {"torch mul_": Measure(lambda: half.mul_(1.0), 2 * half.nbytes)},
        }

    def _parts(self, elements: int, count: int) -> list[Tensor]:
        if self._memory.numel() < elements + 3 * SKEW:
            self._memory = torch.ones(elements + 3 * SKEW, device=self._device)
        size = elements // count
        return [self._memory.narrow(0, index * (size + SKEW), size) for index in range(count)]

    def _best(self, ways: dict[str, Measure]) -> str:
        if len(ways) == 1:
            return next(iter(ways))
        seconds = interleave([way.run for way in ways.values()], self._clock, rounds=PROBES, budget_s=10)
        speeds = [way.bytes / median(times) for way, times in zip(ways.values(), seconds, strict=True)]
        return list(ways)[speeds.index(max(speeds))]

    def _memmove(self, source: Tensor, target: Tensor) -> None:
        """Copy by the C library, each thread a part: it writes past the caches where that pays."""
        size = -(-source.nbytes // torch.get_num_threads() // 64) * 64
        starts = range(0, source.nbytes, size)
        parts = [(target.data_ptr() + at, source.data_ptr() + at, min(size, source.nbytes - at)) for at in starts]
        for done in [self._threads.submit(ctypes.memmove, *part) for part in parts]:
            done.result()
