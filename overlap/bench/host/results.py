"""What the host bench found, as data. Every figure is defined in docs/bench.md."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from overlap.bench.host.settings import Shape

PLAIN, OURS, OURS_INLINE, PEER = "plain", "ours", "ours-inline", "fsdp2"


@dataclass(frozen=True, kw_only=True)
class HostRow:
    """One subject in one world and shape; everything per unit and step."""

    world: int
    units: int
    params_per_unit: int
    contender: str
    host_us: float
    """Forward and backward over the plain model's."""
    python_calls: float
    """The same, Python functions entered."""
    optimizer_us: float
    """Clipping and update."""
    optimizer_calls: float
    optimizer_launches: float
    """Aten operators, nested ones too, and fused ops of ours."""
    of_fsdp2_host: float | None
    """``host_us`` over FSDP2's."""
    of_fsdp2_optimizer: float | None
    """``optimizer_us`` over FSDP2's."""


@dataclass(frozen=True)
class HostReport:
    """All rows of a run."""

    machine: Mapping[str, Any]
    rows: tuple[HostRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` writes."""
        return {"machine": dict(self.machine), "rows": [asdict(row) for row in self.rows]}


def rows_of(world: int, shape: Shape, found: Mapping[str, Mapping[str, float]]) -> list[HostRow]:
    """Divide by units, take the plain model off, compare with FSDP2.

    Args:
        world: ranks.
        shape: of the model.
        found: figures of whole steps by subject (``overlap.bench.host.measure``).
    """
    plain, peer = found[PLAIN], found[PEER]
    rows = []
    for name, seen in found.items():
        if name == PLAIN:
            continue
        host, peer_host = seen["pass_s"] - plain["pass_s"], peer["pass_s"] - plain["pass_s"]
        compared = name != PEER
        rows.append(
            HostRow(
                world=world,
                units=shape.units,
                params_per_unit=shape.params,
                contender=name,
                host_us=1e6 * host / shape.units,
                python_calls=(seen["pass_calls"] - plain["pass_calls"]) / shape.units,
                optimizer_us=1e6 * seen["update_s"] / shape.units,
                optimizer_calls=seen["update_calls"] / shape.units,
                optimizer_launches=seen["update_launches"] / shape.units,
                of_fsdp2_host=host / peer_host if compared else None,
                of_fsdp2_optimizer=seen["update_s"] / peer["update_s"] if compared else None,
            )
        )
    return rows
