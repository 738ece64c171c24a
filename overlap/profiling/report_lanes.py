"""One step as a drawing in plain text: a line per lane, to scale, readable without colour.

compute ░░░▏F0    ▕▏F1    ▕▏B1        ▕▏B0        ▕    ░ compute waited
gather  ▏AG0▕▏AG1▕
"""

import textwrap
from collections.abc import Iterable, Sequence

from overlap.profiling.timeline import LANES, Span
from overlap.profiling.window import window_of

_KIND_LETTERS = {
    "forward": "F",
    "backward": "B",
    "recompute": "R",
    "pack": "P",
    "update": "U",
    "norm": "N",
    "gather": "AG",
    "reduce": "RS",
    "replicate": "AR",
}
_STALL = "░"
_NARROW = "▌"


def draw_lanes(spans: Iterable[Span], width: int = 100) -> str:
    """Draw the spans of one rank; the drawing, its axis and its legend fit ``width`` columns.

    Units are numbered in order of first appearance. Ops are shortened as in the literature: AG0 is the gather
    of unit 0, F forward, B backward, P pack, RS reduce, U update. An op too short for a column of its own
    shares one with its neighbour.
    """
    ordered = window_of(spans)
    numbers = _unit_numbers(ordered)
    lanes = sorted({span.lane for span in ordered}, key=_lane_order)
    margin = max(len(lane) for lane in lanes) + 1
    scale = _Scale(ordered, columns=max(width - margin, 20))
    lines = [
        f"{lane:<{margin}}" + _draw_lane([span for span in ordered if span.lane == lane], numbers, scale)
        for lane in lanes
    ]
    axis = " " * margin + scale.axis()
    legend = _legend(numbers, any(span.stalled for span in ordered), width)
    return "\n".join([*(line.rstrip() for line in lines), axis, *legend])


class _Scale:
    """Nanoseconds to columns."""

    def __init__(self, ordered: Sequence[Span], columns: int) -> None:
        self.columns = columns
        self._origin = ordered[0].start_ns
        self._span_ns = max(max(span.end_ns for span in ordered) - self._origin, 1)

    def cells(self, span: Span) -> tuple[int, int]:
        """Columns ``[first, last)`` of a span, never none."""
        first = min(self._column(span.start_ns), self.columns - 1)
        return first, max(self._column(span.end_ns), first + 1)

    def axis(self) -> str:
        end = f"{self._span_ns / 1e6:.2f} ms"
        return "0" + end.rjust(self.columns - 1)

    def _column(self, at_ns: int) -> int:
        return (at_ns - self._origin) * self.columns // self._span_ns


def _draw_lane(own: Sequence[Span], numbers: dict[str, str], scale: _Scale) -> str:
    drawn = ""
    for span in own:
        first, last = scale.cells(span)
        first = max(first, len(drawn))
        if first < last:
            drawn = drawn.ljust(first) + _box(span, numbers, last - first)
    return drawn


def _box(span: Span, numbers: dict[str, str], cells: int) -> str:
    """The most telling that fits: boxed label, boxed unit number, bare number, plain mark."""
    if span.stalled:
        return _STALL * cells
    number = numbers[span.unit]
    for label in (_KIND_LETTERS.get(span.kind, span.kind[:3].title()) + number, number):
        if label and cells >= len(label) + 2:
            return "▏" + label.ljust(cells - 2) + "▕"
        if label and cells == len(label) + 1:
            return "▏" + label
    if cells == len(number):
        return number
    return _NARROW if cells == 1 else "▏" + " " * (cells - 2) + "▕"


def _unit_numbers(ordered: Sequence[Span]) -> dict[str, str]:
    """Unit -> its number as text; the whole model has none."""
    units = [unit for unit in dict.fromkeys(span.unit for span in ordered) if unit]
    return {"": ""} | {unit: str(number) for number, unit in enumerate(units)}


def _legend(numbers: dict[str, str], waits: bool, width: int) -> list[str]:
    """What the marks mean: stalls first, then the number of each unit."""
    entries = [f"{_STALL}=stall"] if waits else []
    entries += [f"{number}={unit}" for unit, number in numbers.items() if number]
    return textwrap.wrap("  ".join(entries), width, break_on_hyphens=False)


def _lane_order(lane: str) -> tuple[int, str]:
    return (LANES.index(lane) if lane in LANES else len(LANES)), lane
