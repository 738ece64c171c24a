"""Times that others have measured: logs of nccl-tests, tables of them as CSV, and our own ``--json`` files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import cast

from overlap.bench.collective.names import COLLECTIVES, NO_ROOT, ROOTED
from overlap.comm.cost import Point
from overlap.comm.volume import Collective
from overlap.errors import ConfigError, message

_PROGRAMS: dict[str, Collective] = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""By how programs are called: ``alltoall_perf``."""

_PREFIX = re.compile(r"^\[[0-9,]+\]<std(?:out|err)>: ?")
_NAME = re.compile(
    rf"(?<![a-z])((?:{'|'.join(name for name in _PROGRAMS if name not in ROOTED)})(?![a-z])"
    rf"|(?:{'|'.join(ROOTED)})(?=_perf| over ))"  # these are words of other lines, too
)
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One collective over a range of sizes."""

    label: str
    """Where it is from."""
    op: Collective
    world: int
    """Ranks."""
    points: tuple[Point, ...]
    """Bytes of the whole tensor, and seconds out of place."""


def read_tables(path: Path) -> list[Table]:
    """Read what a file holds: JSON of ours, CSV of a table, else the log of nccl-tests (or what we print).

    Raises:
        ConfigError: it cannot be read, or holds no table.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        got = f"{path} ({error.strerror})"
        raise ConfigError(message("file", "be readable", got, "name a log or table")) from error
    tables = [table for table in _parse(text, path) if table.points]
    if not tables:
        cure = "name the output of nccl-tests, a CSV with size_bytes and oop_time_us, or a --json file"
        raise ConfigError(message("file", "hold times of collectives", str(path), cure))
    return tables


def _parse(text: str, path: Path) -> list[Table]:
    """Tables of a text, none where it is not what the name says."""
    readers = {".json": from_json, ".csv": from_csv}
    try:
        return list(readers.get(path.suffix, from_log)(text, path.name))
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError):
        return []


def from_json(text: str, label: str) -> Iterator[Table]:
    """Tables of a ``--json`` file, one per collective, datatype, transport and root."""
    given = json.loads(text)
    groups: dict[tuple[str, str, str, int], list[Point]] = {}
    for row in given["rows"]:
        key = (row["collective"], row["type"], row["transport"], row.get("root", NO_ROOT))
        groups.setdefault(key, []).append((row["size"], row["out_of_place"]["time_us"] / 1e6))
    for (op, kind, transport, root), points in groups.items():
        title = f"{label}: {op} {kind} over {transport}{_from(str(root))}"
        yield _table(title, op, given["settings"]["ranks"], points)


def from_csv(text: str, label: str) -> Iterator[Table]:
    """Tables of rows with collective, nranks, size_bytes and oop_time_us, told apart by source, where that is given."""
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    reader = csv.DictReader(StringIO(text))
    if not {"collective", "nranks", "size_bytes", "oop_time_us"} <= set(reader.fieldnames or ()):
        return
    for row in reader:
        groups.setdefault((row.get("source", ""), row["collective"], row["nranks"]), []).append(row)
    for (_, op, world), rows in groups.items():
        system = ", ".join(filter(None, (rows[0].get("system"), rows[0].get("fabric"))))
        points = ((int(row["size_bytes"]), float(row["oop_time_us"]) / 1e6) for row in rows)
        yield _table(f"{label}: {op}{f', {system}' if system else ''}", _known(op, label), int(world), points)


def from_log(text: str, label: str) -> Iterator[Table]:
    """Tables of a log: the collective by the last name of one above its header, the ranks by its list of them."""
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    world = len({int(rank) for rank in _RANK.findall("\n".join(lines))})
    name, columns = _NAME.search(label), list[str]()
    groups: dict[tuple[str, str, str, str], list[Point]] = {}
    for line in lines:
        if line.lstrip("# ").startswith("size ") and "algbw" in line:
            columns = line.lstrip("# ").split()
        elif not line[:1].isspace() or not columns:
            name = _NAME.search(line) or name
        elif cells := _cells(line, columns):
            transport = cells.get("transport", "")
            key = (name[1] if name else "", cells.get("type", ""), transport, cells.get("root", str(NO_ROOT)))
            groups.setdefault(key, []).append((int(cells["size"]), float(cells["time"]) / 1e6))
    for (program, kind, transport, root), points in groups.items():
        over = (f" over {transport}" if transport else "") + _from(root)
        yield _table(f"{label}: {program} {kind}{over}", _known(program, label), world, points)


def _from(root: str) -> str:
    return f", root {root}" if root != str(NO_ROOT) else ""


def _cells(line: str, columns: Sequence[str]) -> dict[str, str] | None:
    """A row by its columns, the first of each name: those out of place come first. None for what is no row."""
    words = line.split()
    if len(words) < len(columns) or not words[0].isdigit():
        return None
    return dict(reversed(list(zip(columns, words, strict=False))))


def _known(name: str, label: str) -> Collective:
    if name not in _PROGRAMS:
        cure = "keep the line of the log that names the program (all_gather_perf), or name the file so"
        raise ConfigError(
            message(f"collective of {label}", f"be one of {', '.join(COLLECTIVES)}", name or "none", cure)
        )
    return _PROGRAMS[name]


def _table(label: str, op: str, world: int, points: Iterable[Point]) -> Table:
    """Without sizes that were rounded to nothing, and times that were."""
    if world < 2:
        cure = "keep the lines of a log that list its ranks; on one there is nothing to send"
        raise ConfigError(message(f"ranks of {label}", "be two or more", world or "none", cure))
    kept = tuple((nbytes, seconds) for nbytes, seconds in points if nbytes > 0 and seconds > 0)
    return Table(label=label, op=cast(Collective, op), world=world, points=kept)
