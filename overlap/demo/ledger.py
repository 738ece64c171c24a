"""Memory and wire: what the engine predicts against what it allocated and sent, as rows and as a sentence."""

from overlap.engine.memory import MemoryReport
from overlap.engine.wire import WireReport
from overlap.profiling.report_terminal import LedgerRow


def memory_rows(memory: MemoryReport) -> list[LedgerRow]:
    """One row per kind of buffer."""
    return [
        LedgerRow(item.name, item.predicted, item.allocated, "model state" if item.state else "on top")
        for item in memory.items
    ]


def memory_formula(memory: MemoryReport) -> str:
    """The model states against the formula of their stage, which knows no padding."""
    return (
        f"model states in MB: {_mb(memory.allocated)} allocated, {_mb(memory.predicted)} predicted, "
        f"{_mb(memory.formula)} by formula"
    )


def wire_rows(wire: WireReport) -> list[LedgerRow]:
    """The planned traffic, then what no plan foresees."""
    planned = LedgerRow("planned", round(wire.formula + sum(wire.items.values())), wire.counted, "see below")
    return [planned, *(LedgerRow(kind, 0, size, "not in the plan") for kind, size in wire.other.items())]


def wire_formula(wire: WireReport) -> str:
    """The planned traffic as the formula of its stage and the known differences."""
    terms = [f"{_mb(wire.formula)} by formula"]
    terms += [f"{_mb(size, sign='+')} {name}" for name, size in wire.items.items()]
    return "planned, in MB: " + ", ".join(terms)


def _mb(size: float, sign: str = "") -> str:
    return f"{size / 1e6:{sign}.3f}"
