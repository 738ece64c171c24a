"""What a run of the step bench found, as data. Every figure is defined in docs/bench.md."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the ranks saw of one contender. Crosses from worker to parent as JSON."""

    contender: str
    seconds: list[float] = field(default_factory=list)
    """Per step, the slowest rank's, by round."""
    losses: list[float] = field(default_factory=list)
    """Mean over ranks, by step; none of the floor, whose ranks train apart."""
    loss_error: float | None = None
    """Largest relative difference from the reference's losses."""
    counted_bytes: int | None = None
    """Per step and rank, by the contender's own count."""
    kernel_bytes: int | None = None
    """Per step, what rank 0's host sent by /proc/net/dev; None on loopback, where others are counted too."""
    formula_bytes: int = 0
    """Per step and rank, by formula from the collectives it was seen to call."""
    ideal_bytes: float = 0.0
    """Per step and rank, what its stage must send."""
    collectives: dict[str, int] = field(default_factory=dict)
    """Calls of one step, by gloo's name."""
    options: str = ""
    skipped: str | None = None
    wrong: str | None = None
    """Why what it computed is not what was asked for."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    contender: str
    stage: int | None
    dtype: str
    step_ms: float | None = None
    exposed_ms: float | None = None
    wire_bytes: int | None = None
    wire_counted_by: Literal["engine", "/proc/net/dev", "formula"] | None = None
    peak_bytes: int | None = None
    start_bytes: int | None = None
    ours_speedup: float | None = None
    compared_with: str | None = None
    over_floor: float | None = None
    over_ideal: float | None = None
    ideal_ms: float | None = None
    ideal_bytes: float | None = None
    proc_net_bytes: int | None = None
    loss_last: float | None = None
    loss_error: float | None = None
    """Largest relative difference from the reference's losses."""
    collectives: Mapping[str, int] = field(default_factory=dict)
    options: str = ""
    samples_ms: Sequence[float] = ()
    skipped: str | None = None
    wrong: str | None = None


@dataclass(frozen=True)
class StepReport:
    """All rows of a run."""

    net: str
    ranks: int
    machine: Mapping[str, Any]
    rows: tuple[Row, ...]

    @property
    def wrong(self) -> list[str]:
        """Contenders that computed something else."""
        return [row.contender for row in self.rows if row.wrong is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` writes."""
        rows = [asdict(row) for row in self.rows]
        return {"net": self.net, "ranks": self.ranks, "machine": dict(self.machine), "rows": rows}
