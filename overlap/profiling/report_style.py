"""How tables look: figures on the right, names on the left, one unit per column, rules instead of frames."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

_BAR_CELLS = 30
_BAR_EIGHTHS = " ▏▎▍▌▋▊▉"

# A rule under the head and before the total, nothing else: figures carry the table.
_BOX = box.Box("    \n    \n ── \n    \n ── \n ── \n    \n    \n")


def figures_table(title: str, left: str, right: Sequence[str]) -> Table:
    """An empty table with a column of names (left) and columns of figures (right)."""
    table = Table(title=title, title_justify="left", title_style="bold", box=_BOX)
    table.show_edge, table.pad_edge, table.collapse_padding = False, False, True
    table.add_column(left, no_wrap=True)
    for header in right:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def tail(name: str, width: int) -> str:
    """The end of an FQN tells units apart: cut the front."""
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]


def bar(share: float) -> str:
    """A bar to scale, in eighths of a cell."""
    eighths = round(share * _BAR_CELLS * 8)
    return ("█" * (eighths // 8) + _BAR_EIGHTHS[eighths % 8]).rstrip()


def ms(ns: int) -> str:
    """Milliseconds, two decimals."""
    return f"{ns / 1e6:.2f}"


def scaled(value: int, divisor: int) -> str:
    """Bytes in the unit of their column; plain bytes have no fraction."""
    return str(value) if divisor == 1 else f"{value / divisor:.2f}"


def byte_scale(values: Sequence[int]) -> tuple[int, str]:
    """One decimal unit for a whole column, so that its figures compare at a glance."""
    largest = max(values, default=0)
    for divisor, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if largest >= divisor:
            return divisor, name
    return 1, "B"
