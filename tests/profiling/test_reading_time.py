"""Reading takes time in proportion: a trace of 100 MB is a matter of seconds (profiles/2026-11-30_cpu-2core_report)."""

import json
import time
from pathlib import Path

from overlap.profiling.rank_report import report

from .traces import event, kernel, launch

EVENTS_PER_KERNEL = 3


def big_trace(path: Path, megabytes: int) -> Path:
    """A trace as torch.profiler writes it, one event a few lines, of about so many MB."""
    with path.open("w") as file:
        file.write('{\n  "schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 8},\n  "traceEvents": [\n')
        number, written = 0, 0
        while written < megabytes * 1_000_000:
            number += 1
            at = 1_700_000_000_000_000 + number * 20
            name, stream = ("ncclDevKernel_AllGather_RING_LL", 20) if number % 16 == 0 else ("gemm_128x128", 7)
            rows = (
                event(
                    "cpu_op",
                    "aten::mm",
                    at,
                    12.345,
                    **{"External id": number, "Ev Idx": number, "Call stack": "x" * 90},
                ),
                launch(number, at + 3),
                kernel(name, at + 5, 15.25, stream, number, grid=[8, 8, 1], block=[128, 1, 1], queued=0, context=1),
            )
            text = ",\n".join("  " + json.dumps(row, indent=2) for row in rows)
            written += file.write(text if number == 1 else ",\n" + text)
        file.write("\n]}\n")
    return path


def test_twice_the_trace_takes_about_twice_the_time(tmp_path):
    small, large = (big_trace(tmp_path / f"{size}.json", size) for size in (2, 8))
    seconds = {}
    for path in (small, large, small, large):
        start = time.perf_counter()
        measured = report(str(path)).ranks[0]
        seconds[path] = min(seconds.get(path, 1e9), time.perf_counter() - start)
    assert measured.totals.comm_ops > 500
    assert seconds[large] < 12 * seconds[small]  # four times the events; quadratic would be sixteen
