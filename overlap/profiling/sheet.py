"""A table as data, and its three faces: terminal, Markdown, and (``report_html``) a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from overlap.profiling.report_style import figures_table, tail

_FIGURE_WIDTH = 11
"""Columns of the terminal that a figure takes at most; names get the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Names on the left, figures on the right."""

    title: str
    left: str
    """Head of the column of names."""
    heads: Sequence[str]
    """Heads of the columns of figures."""
    rows: Sequence[Sequence[str]]
    """A name and a figure per head; "" where there is none."""
    texts: int = 0
    """How many of the last columns are text, not figures."""
    note: str = ""
    """What a reader must know about the figures."""


def terminal(sheet: Sheet, width: int = 80) -> Table:
    """The sheet for a terminal of ``width`` columns; long names lose their front."""
    names = max(width - _FIGURE_WIDTH * len(sheet.heads), 24)
    table = figures_table(sheet.title, left=sheet.left, right=list(sheet.heads))
    table.caption, table.caption_justify, table.caption_style = sheet.note or None, "left", "dim"
    for column in table.columns[len(table.columns) - sheet.texts :]:
        column.justify, column.no_wrap = "left", False  # figures are cut last
    for name, *figures in sheet.rows:
        table.add_row(escape(tail(name, names)), *map(escape, figures))
    return table


def markdown(sheet: Sheet) -> str:
    """The sheet as GitHub shows it."""
    lines = [
        f"### {sheet.title}",
        "",
        _line([sheet.left, *sheet.heads]),
        _line(["---", *["---:"] * (len(sheet.heads) - sheet.texts), *["---"] * sheet.texts]),
        *map(_line, sheet.rows),
    ]
    return "\n".join([*lines, *(("", sheet.note) if sheet.note else ()), ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
