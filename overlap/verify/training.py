"""What only shows over several steps: parameters that are never used, and departures from the plan."""

from __future__ import annotations

from collections.abc import Iterator

from overlap.verify.finding import Spot
from overlap.verify.log import Placed
from overlap.verify.pair import Pair, engine_of
from overlap.verify.text import count


class History:
    """Kept from step to step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._used: set[str] = set()
        self._deviations: list[int] = []

    def note(self, pair: Pair, loss: float) -> None:
        """After a backward."""
        self.losses.append(loss)
        self._used |= {name for name, param in pair.public.items() if param.grad is not None}
        self._deviations.append(engine_of(pair).deviations)

    def unused(self, pair: Pair, spot: Spot) -> Iterator[Placed]:
        """Trainable parameters without a gradient in any step on any rank."""
        for place, (name, param) in enumerate(pair.public.items()):
            if param.requires_grad and name not in self._used:
                yield place, spot.finding("no_gradient", pair.unit_of(name), name, "")

    def deviations(self, rank: int) -> Iterator[Placed]:
        """Steps after the recorded one that did not follow its plan; the first is named."""
        for step, (before, after) in enumerate(zip(self._deviations, self._deviations[1:], strict=False), start=2):
            if after > before:
                total = self._deviations[-1] - self._deviations[0]
                met = f"{count(after - before, 'departure')} in this step, {total} in all"
                yield step, Spot(step, rank).finding("deviation", "", "", met)
                return
