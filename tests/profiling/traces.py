"""Traces of torch.profiler written by hand: one line per event."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def event(
    cat: str, name: str, start: float, dur: float, *, tid: Any = 1, pid: Any = 100, **args: Any
) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur, "args": args}


def kernel(name: str, start: float, dur: float, stream: int = 7, correlation: int = 0, **args: Any) -> dict[str, Any]:
    args |= {"device": 0, "stream": stream, "correlation": correlation}
    return event("kernel", name, start, dur, tid=stream, pid=0, **args)


def launch(correlation: int, start: float, dur: float = 1, tid: Any = 1) -> dict[str, Any]:
    return event("cuda_runtime", "cudaLaunchKernel", start, dur, tid=tid, correlation=correlation)


def document(*events: dict[str, Any], **header: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, **header, "traceEvents": list(events), "traceName": "trace.json"}


def write(path: Path, *events: dict[str, Any], indent: int | None = None, **header: Any) -> Path:
    text = json.dumps(document(*events, **header), indent=indent)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path
