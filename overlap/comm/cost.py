"""What a collective costs by its size: t(bytes) = latency + bytes / bandwidth, in a few regimes. No torch here.

A library changes protocol and algorithm with the size, so one line does not do: a few regimes, each with a latency and
a bandwidth of its own, need not meet at their borders. `fit` finds borders and lines that leave the least relative
error, since times span five orders of magnitude and each of them counts.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from overlap.errors import ConfigError, message

Point = tuple[int, float]
"""Bytes, and seconds they took."""

MAX_REGIMES = 5
MIN_POINTS = 3
"""Per regime: a line through two points fits whatever they are."""

NOISE = 0.01
"""Relative error that a further regime is not worth to remove: tables repeat to about this."""


@dataclass(frozen=True)
class Regime:
    """One line of the model.

    Attributes:
        up_to: largest size in bytes that it holds for; infinite for the last one.
        latency_s: seconds before the first byte; never negative.
        seconds_per_byte: inverse of the bandwidth; never negative, 0 where more bytes took no longer.
    """

    up_to: float
    latency_s: float
    seconds_per_byte: float

    def seconds(self, nbytes: float) -> float:
        """Time of one call."""
        return self.latency_s + nbytes * self.seconds_per_byte


@dataclass(frozen=True)
class CostModel:
    """Regimes in order of size.

    Attributes:
        regimes: at least one; the last one's `up_to` is infinite.
        measured: smallest and largest size that it was fitted to: beyond, it is a guess.
        median_error: median over the points of |predicted / measured - 1|.
        max_error: the largest of these.
    """

    regimes: tuple[Regime, ...]
    measured: tuple[int, int]
    median_error: float
    max_error: float

    def seconds(self, nbytes: float) -> float:
        """Time of one call of `nbytes`."""
        return next(regime for regime in self.regimes if nbytes <= regime.up_to).seconds(nbytes)

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second that ever larger calls approach; None where the last regime shows no bound."""
        slope = self.regimes[-1].seconds_per_byte
        return 1 / slope if slope > 0 else None

    def share(self, nbytes: float) -> float | None:
        """Part of the bandwidth that calls of `nbytes` reach."""
        return nbytes / self.seconds(nbytes) / self.bandwidth if self.bandwidth else None

    def smallest(self, share: float) -> int | None:
        """Smallest size from which on calls reach `share` of the bandwidth; None if no measured size does."""
        first, last = self.measured
        borders = [0.0, *(regime.up_to for regime in self.regimes[:-1]), float(last)]
        found: float | None = None
        for regime, (low, high) in reversed(list(zip(self.regimes, pairwise(borders), strict=True))):
            needed = self._needed(regime, share)
            if needed > high:
                break
            found = max(needed, low)
            if needed > low:
                break
        return None if found is None else max(first, math.ceil(found))

    def _needed(self, regime: Regime, share: float) -> float:
        """Bytes from which on a regime, if it went on for ever, would reach the share."""
        if self.bandwidth is None:
            return math.inf
        wanted = share * self.bandwidth
        headroom = 1 - wanted * regime.seconds_per_byte
        return wanted * regime.latency_s / headroom if headroom > 0 else math.inf


def fit(points: Iterable[Point], max_regimes: int = MAX_REGIMES) -> CostModel:
    """Fit the model to measured times; several times of one size are taken by their median.

    Args:
        points: of positive bytes and seconds.
        max_regimes: how many there may be; a further one must lower the error by more than chance would
            (Bayesian information criterion, three parameters per regime).

    Raises:
        ConfigError: no points, or one that is not positive.
    """
    given = _by_size(points)
    candidates = [
        _best_split(given, count) for count in range(1, max(1, min(max_regimes, len(given) // MIN_POINTS)) + 1)
    ]
    parts = min(candidates, key=lambda parts: _criterion(given, parts))
    regimes = [
        Regime(_border(part, after), *_line(part)) for part, after in zip(parts, [*parts[1:], None], strict=True)
    ]
    model = CostModel(tuple(regimes), (given[0][0], given[-1][0]), 0.0, 0.0)
    errors = [abs(model.seconds(nbytes) / seconds - 1) for nbytes, seconds in given]
    return CostModel(model.regimes, model.measured, median(errors), max(errors))


def _by_size(points: Iterable[Point]) -> list[Point]:
    times: dict[int, list[float]] = {}
    for nbytes, seconds in points:
        if not (nbytes > 0 and seconds > 0):
            raise ConfigError(message("a point", "have positive bytes and seconds", (nbytes, seconds), "leave it out"))
        times.setdefault(nbytes, []).append(seconds)
    if not times:
        raise ConfigError(message("points", "be at least one", "none", "measure some sizes"))
    return [(nbytes, median(times[nbytes])) for nbytes in sorted(times)]


def _border(part: Sequence[Point], after: Sequence[Point] | None) -> float:
    """Half way, on a scale of ratios, between the last size of a regime and the first of the next."""
    return math.inf if after is None else math.sqrt(part[-1][0] * after[0][0])


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """Latency and seconds per byte, both at least 0, of least squared relative error."""
    size, time = max(nbytes for nbytes, _ in points), max(seconds for _, seconds in points)
    x, y = [nbytes / size * time / seconds for nbytes, seconds in points], [time / seconds for _, seconds in points]
    xx, xy, yy = _dot(x, x), _dot(x, y), _dot(y, y)
    determinant = xx * yy - xy * xy
    latency = slope = -1.0
    if determinant > 1e-12 * xx * yy:
        latency = (xx * sum(y) - xy * sum(x)) / determinant
        slope = (yy * sum(x) - xy * sum(y)) / determinant
    if latency < 0 or slope < 0:  # the best of those with one of them 0
        latency, slope = min(((0.0, sum(x) / xx), (sum(y) / yy, 0.0)), key=lambda line: _residual(x, y, *line))
    return latency * time, slope * time / size


def _residual(x: Sequence[float], y: Sequence[float], latency: float, slope: float) -> float:
    return sum((latency * b + slope * a - 1) ** 2 for a, b in zip(x, y, strict=True))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def _squared_error(points: Sequence[Point]) -> float:
    latency, slope = _line(points)
    return math.fsum(((latency + slope * nbytes) / seconds - 1) ** 2 for nbytes, seconds in points)


def _best_split(points: list[Point], count: int) -> list[list[Point]]:
    """Cut the points into `count` runs of least total error: dynamic programming over the end of each run."""
    least = min(MIN_POINTS, len(points))
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for _ in range(count):
        ends: dict[int, tuple[float, list[int]]] = {}
        for start, (error, cuts) in best.items():
            for end in range(start + least, len(points) + 1):
                total = error + _squared_error(points[start:end])
                if end not in ends or total < ends[end][0]:
                    ends[end] = (total, [*cuts, end])
        best = ends
    cuts = [0, *best[len(points)][1]]
    return [points[start:end] for start, end in pairwise(cuts)]


def _criterion(points: list[Point], parts: list[list[Point]]) -> float:
    """Bayesian information criterion, with noise that no regime can explain."""
    variance = sum(map(_squared_error, parts)) / len(points) + NOISE**2
    return len(points) * math.log(variance) + 3 * len(parts) * math.log(len(points))
