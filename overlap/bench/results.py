"""What a run of the op bench found, as data. Every figure is defined in docs/bench.md."""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from overlap.bench.case import Yardstick

KINDS: tuple[Yardstick, ...] = ("copy", "triad", "read", "update")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One face beside one peer (or none), in one case."""

    op: str
    variant: str
    face: str
    dtype: str
    elements: int
    bytes: int
    ms: float
    gbps: float
    bound: Yardstick
    """The bandwidth that limits the op."""
    copy_gbps: float
    triad_gbps: float
    read_gbps: float
    update_gbps: float
    fraction_of_copy: float
    fraction_of_triad: float
    fraction_of_read: float
    fraction_of_update: float
    peer: str | None
    peer_missing: str | None
    peer_ms: float | None
    peer_gbps: float | None
    speedup_vs_peer: float | None
    rounds: int
    wrong: int

    @property
    def fraction(self) -> float:
        """Share of the bandwidth that limits the op."""
        value: float = getattr(self, f"fraction_of_{self.bound}")
        return value


@dataclass(frozen=True)
class Report:
    """All rows of a run so far."""

    machine: dict[str, Any]
    rows: tuple[Row, ...] = ()
    left_out: tuple[str, ...] = ()
    """Op, dtype and size where the time limit came before the last case."""

    @property
    def wrong(self) -> int:
        """Wrong values over all faces; each is counted once, however many peers stand beside it."""
        counted = {(row.op, row.variant, row.dtype, row.elements, row.face): row.wrong for row in self.rows}
        return sum(counted.values())

    def bandwidth(self, kind: Yardstick) -> float | None:
        """Median of a yardstick over the rows, in GB/s."""
        return median(getattr(row, f"{kind}_gbps") for row in self.rows) if self.rows else None

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` writes."""
        return {
            "machine": self.machine,
            **{f"{kind}_gbps": self.bandwidth(kind) for kind in KINDS},
            "rows": [asdict(row) for row in self.rows],
            "left_out": list(self.left_out),
        }
