"""A plan: one pass over the model as data. The plan is the schedule; the executor decides nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property

from overlap.schedule.op import OF_BUCKETS, Kind, LaneName, Op
from overlap.schedule.spec import BucketSpec, StepSpec, UnitSpec


@dataclass(frozen=True)
class Plan:
    """Ops in the order the host issues them.

    Attributes:
        mode: which kind of pass it is for, e.g. ``train`` or ``eval``.
        spec: the units and buckets that op indices refer to.
        prefetch: how many compute entries ahead a gather is issued.
        ops: the schedule.
    """

    mode: str
    spec: StepSpec
    prefetch: int
    ops: tuple[Op, ...]

    @cached_property
    def hash(self) -> str:
        """Digest of the whole plan; equal on every rank or the ranks must not run it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """One JSON object: mode, prefetch, units, buckets, ops (each with its lane)."""
        body = {
            "mode": self.mode,
            "prefetch": self.prefetch,
            "units": [asdict(unit) for unit in self.spec.units],
            "buckets": [asdict(bucket) for bucket in self.spec.buckets],
            "ops": [asdict(op) for op in self.ops],
        }
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Rebuild what ``to_json`` wrote."""
        body = json.loads(text)
        spec = StepSpec(
            tuple(UnitSpec(**unit) for unit in body["units"]),
            tuple(BucketSpec(**bucket) for bucket in body["buckets"]),
        )
        return cls(body["mode"], spec, body["prefetch"], tuple(_op(op) for op in body["ops"]))

    def without_wait(self, op_number: int, event: str) -> Plan:
        """The same plan with one wait deleted: what tests use to show that every wait is needed."""
        op = self.ops[op_number]
        kept = tuple(name for name in op.waits if name != event)
        changed = Op(op.kind, op.index, op.bytes, kept, op.records, op.frees)
        ops = (*self.ops[:op_number], changed, *self.ops[op_number + 1 :])
        return Plan(self.mode, self.spec, self.prefetch, ops)

    def label(self, op: Op) -> str:
        """Short name for tables, e.g. ``gather blocks.3``."""
        if op.kind in (Kind.BEGIN, Kind.END):
            return str(op.kind)
        named = self.spec.buckets if op.kind in OF_BUCKETS else self.spec.units
        return f"{op.kind} {named[op.index].name or '(root)'}"

    def table(self) -> str:
        """Lane by time, one row per op in issue order: where it runs, what it waits for."""
        lanes = list(LaneName)
        rows = [[self.label(op) if op.lane is lane else "" for lane in lanes] for op in self.ops]
        heads = [str(lane) for lane in lanes]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [heads, *rows]
        ]
        waits = ["waits for", *(", ".join(op.waits) for op in self.ops)]
        return "\n".join(f"{line}  {wait}".rstrip() for line, wait in zip(lines, waits, strict=True))


def _op(fields: dict[str, object]) -> Op:
    body = {name: value for name, value in fields.items() if name != "lane"}
    body["kind"] = Kind(str(body["kind"]))
    body["waits"] = tuple(body["waits"])  # type: ignore[arg-type]
    return Op(**body)  # type: ignore[arg-type]
