"""A dated folder in profiles/: what was run, on what, and what came out."""

import datetime
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_record.parts import Outcome

README = """# Fused ops on {gpu}

`make gpu` on {date}: the tests that need a GPU, then every fused op at 128M elements, interleaved with its peers and
with this machine's own copy, triad and read, every value checked. Times are medians of CUDA events; `docs/bench.md`
defines each figure. The op's own bytes are counted, not measured.

| part | outcome |
|---|---|
{parts}

| bandwidth in this run | GB/s |
|---|---|
{bandwidth}

{wrong}

| op | variant | dtype | face | GB/s | of the machine's | peer | peer ms / ms |
|---|---|---|---|---|---|---|---|
{rows}
{rest}"""


@dataclass(frozen=True)
class Record:
    """Everything that goes into the folder."""

    date: datetime.date
    gpu: str
    outcomes: Sequence[Outcome]
    result: dict[str, Any]
    """What ``overlap bench op --json`` wrote; empty where it wrote nothing."""
    notes: Sequence[str] = ()
    """What the reader must know: what was not built, for instance."""

    @property
    def name(self) -> str:
        """Of the folder."""
        return f"{self.date.isoformat()}_{re.sub('[^a-z0-9]+', '-', self.gpu.lower()).strip('-')}_ops"

    @property
    def passed(self) -> bool:
        """Whether every part passed and there is something to show."""
        return all(outcome.passed for outcome in self.outcomes) and bool(self.result.get("rows"))

    def write(self, parent: Path) -> Path:
        """Write the folder, over an earlier one of the same day, and return it."""
        folder = parent / self.name
        folder.mkdir(parents=True, exist_ok=True)
        tests = [outcome for outcome in self.outcomes if "pytest" in outcome.part.command]
        files = {
            "README.md": self.readme(),
            "command": "make gpu\n" + "".join(f"{' '.join(each.part.command)}\n" for each in self.outcomes),
            "env": "".join(f"{name}: {value}\n" for name, value in self.environment().items()),
            "result.json": json.dumps(self.result, indent=2) + "\n",
            "pytest.txt": "\n".join(outcome.text for outcome in tests),
        }
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return folder

    def environment(self) -> dict[str, Any]:
        """Return the machine in words."""
        return {"gpu": self.gpu, "os": platform.platform(), "python": platform.python_version()} | self.result.get(
            "machine", {}
        )

    def readme(self) -> str:
        """Return the record in a page."""
        rows = self.result.get("rows", [])
        kinds = ("copy", "triad", "read", "update")
        rest = [f"Not measured, out of time: {', '.join(left)}."] if (left := self.result.get("left_out")) else []
        return README.format(
            gpu=self.gpu,
            date=self.date.isoformat(),
            parts="\n".join(f"| {each.part.name} | {_outcome(each)} |" for each in self.outcomes),
            bandwidth="\n".join(f"| {kind} | {_number(self.result.get(f'{kind}_gbps'))} |" for kind in kinds),
            wrong=f"Wrong values: {sum(_wrong(rows).values()) if rows else 'nothing was measured'}.",
            rows="\n".join(map(_row, rows)),
            rest="".join(f"\n{line}\n" for line in (*rest, *self.notes)),
        )


def _outcome(outcome: Outcome) -> str:
    last = next((line for line in reversed(outcome.text.splitlines()) if line.strip()), "")
    tail = f"; last line: `{last.strip()}`" if "pytest" in outcome.part.command else ""
    return f"{outcome.words.partition(': ')[2]}{tail}"


def _row(row: dict[str, Any]) -> str:
    speedup = _number(row["speedup_vs_peer"], 2)
    share = f"{100 * row['fraction_of_' + row['bound']]:.0f} % of {row['bound']}"
    cells = [row["op"], row["variant"], row["dtype"], row["face"], _number(row["gbps"]), share, row["peer"], speedup]
    return f"| {' | '.join(map(str, cells))} |"


def _wrong(rows: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], int]:
    """Wrong values by case and face: a row per peer repeats them."""
    return {tuple(row[key] for key in ("op", "variant", "dtype", "elements", "face")): row["wrong"] for row in rows}


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
