"""The overlap ratio, and why there is none where there is none. Formula: docs/metrics.md."""


def overlap_ratio(hidden_ns: int, comm_ns: int) -> float | None:
    """Hidden communication over all of it; None without communication."""
    return hidden_ns / comm_ns if comm_ns else None


def why_no_ratio(comm_ns: int, comm_ops: int) -> str | None:
    """Why there is no ratio; None where there is one."""
    if comm_ns:
        return None
    if comm_ops:
        return "every collective took 0 ns"
    return "no collective ran in this window"
