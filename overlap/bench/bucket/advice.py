"""The fit of a table, in figures and as a picture made of letters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from overlap.bench.bucket.tables import Table
from overlap.bench.collective.sizes import show_bytes
from overlap.comm.cost import CostModel, Regime, fit
from overlap.comm.volume import bus_factor
from overlap.config import ShardOptions

KNOWN = {25 << 20: "DDP's default", ShardOptions().bucket_bytes: "Overlap's default"}
"""Buckets that are used where nobody chose."""

WIDTH = 50
"""Letters for 100 % of the bandwidth."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How large a bucket should be, by one table."""

    table: Table
    model: CostModel
    share: float
    """Of the bandwidth that is asked for."""

    @classmethod
    def of(cls, table: Table, share: float) -> Advice:
        """Fit a table."""
        return cls(table=table, model=fit(table.points), share=share)

    @property
    def bucket_bytes(self) -> int | None:
        """Smallest size from which on the share is reached; None if no measured size does."""
        return self.model.smallest(self.share)

    @property
    def busbw(self) -> float | None:
        """What ever larger calls approach, in bytes per second."""
        return None if self.model.bandwidth is None else self.model.bandwidth * self._factor

    @property
    def _factor(self) -> float:
        return bus_factor(self.table.op, self.table.world)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` writes."""
        model = self.model
        return {
            "label": self.table.label,
            "collective": self.table.op,
            "ranks": self.table.world,
            "regimes": [_regime(regime) for regime in model.regimes],
            "busbw_gbps": self.busbw and self.busbw / 1e9,
            "median_error": model.median_error,
            "max_error": model.max_error,
            "share": self.share,
            "bucket_bytes": self.bucket_bytes,
            "points": [self._point(nbytes, seconds) for nbytes, seconds in sorted(self.table.points)],
        }

    def _point(self, nbytes: int, seconds: float) -> dict[str, float | None]:
        fitted = self.model.seconds(nbytes)
        return {
            "size": nbytes,
            "time_us": 1e6 * seconds,
            "fitted_us": 1e6 * fitted,
            "busbw_gbps": nbytes / seconds * self._factor / 1e9,
            "share": self.busbw and nbytes / seconds * self._factor / self.busbw,
        }

    def lines(self) -> Iterator[str]:
        """For the terminal."""
        model = self.model
        yield f"{self.table.label}, {self.table.world} ranks"
        yield f"  error of the fit: median {100 * model.median_error:.1f} %, largest {100 * model.max_error:.1f} %"
        low = "0 B"
        for regime in model.regimes:
            high = show_bytes(regime.up_to) if regime.up_to < math.inf else "..."
            yield f"  {low:>8} to {high:<8}  {1e6 * regime.latency_s:10.1f} us + bytes / {self._speed(regime)}"
            low = high
        yield from self._picture()
        yield from self._known()
        yield self._verdict()

    def _speed(self, regime: Regime) -> str:
        if regime.seconds_per_byte == 0:
            return "no bound"
        return f"{self._factor / regime.seconds_per_byte / 1e9:.2f} GB/s"

    def _picture(self) -> Iterator[str]:
        """A bar per size: ``#`` measured; ``+`` where the fit is."""
        top = self.busbw or max(nbytes / seconds * self._factor for nbytes, seconds in self.table.points)
        marks = "0%".ljust(WIDTH // 2) + "50%".ljust(WIDTH // 2) + "100%"
        yield f"  {'size':>9} {'time us':>10} {'busbw':>8} {'fit':>8}  {marks}"
        for nbytes, seconds in sorted(self.table.points):
            speeds = [nbytes / each * self._factor for each in (seconds, self.model.seconds(nbytes))]
            shown = " ".join(f"{speed / 1e9:8.2f}" for speed in speeds)
            yield f"  {show_bytes(nbytes):>9} {1e6 * seconds:10.1f} {shown}  {_bar(*(speed / top for speed in speeds))}"

    def _known(self) -> Iterator[str]:
        """What buckets that people use without asking would reach."""
        first, last = self.model.measured
        for nbytes, whose in KNOWN.items():
            share = self.model.share(nbytes)
            if share is not None and first <= nbytes <= last:
                yield f"  {show_bytes(nbytes)} ({whose}) reach {100 * share:.0f} %"

    def _verdict(self) -> str:
        if self.busbw is None:
            return "  no bandwidth: the largest sizes took no longer than those before; measure larger ones"
        reach = f"{100 * self.share:.0f} % of {self.busbw / 1e9:.3g} GB/s"
        if self.bucket_bytes is None:
            last = self.model.measured[1]
            met = 100 * (self.model.share(last) or 0.0)
            return f"  no measured size reaches {reach}: {show_bytes(last)} come to {met:.0f} %; measure larger ones"
        return f"  recommended bucket: {show_bytes(self.bucket_bytes)}, the smallest that reaches {reach}"


def _bar(measured: float, fitted: float) -> str:
    cells = ["#"] * min(WIDTH + 4, round(WIDTH * measured))
    mark = min(WIDTH + 3, max(0, round(WIDTH * fitted) - 1))
    cells += [" "] * (mark + 1 - len(cells))
    cells[mark] = "+"
    return "".join(cells)


def _regime(regime: Regime) -> dict[str, float | None]:
    return {
        "up_to_bytes": regime.up_to if regime.up_to < math.inf else None,
        "latency_us": 1e6 * regime.latency_s,
        "bandwidth_gbps": 1e-9 / regime.seconds_per_byte if regime.seconds_per_byte else None,
    }
