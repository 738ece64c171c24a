"""``overlap bench op``: every case's faces, peers and yardsticks in turns; then every value is checked."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from types import ModuleType
from typing import Any

import torch

from overlap.bench.case import Case, Peer, Yardstick
from overlap.bench.faces import brings, load_face
from overlap.bench.machine import describe, using_threads
from overlap.bench.results import Report, Row
from overlap.bench.rows import OPS
from overlap.bench.settings import DTYPES, OpSettings
from overlap.bench.timing import Clock, Run, clock_of, interleave
from overlap.bench.yardsticks import Yardsticks
from overlap.errors import ConfigError, message


def run(settings: OpSettings, progress: Callable[[str], None]) -> Iterator[Report]:
    """Measure case after case and yield the report so far after each.

    Args:
        settings: what to measure.
        progress: told what is measured next.

    Raises:
        ConfigError: a face is not there, or an op is none of the faces' own.
    """
    device = torch.device(settings.device)
    faces = {name: load_face(name) for name in settings.faces}
    for op in settings.ops:
        if not any(brings(face, op) for face in faces.values()):
            rule = f"bring {op} of their own"
            raise ConfigError(message("faces", rule, ", ".join(faces), "add triton, or leave out the op"))
    deadline = math.inf if settings.time_limit_s is None else time.monotonic() + settings.time_limit_s
    with using_threads(settings.threads):
        bench = Bench(settings, faces, clock_of(device), device)
        machine = describe(device, settings.threads, settings.faces)
        report = Report(machine)
        for size, op, dtype in itertools.product(settings.sizes, settings.ops, settings.dtypes):
            cases = OPS[op](size, DTYPES[dtype], device)
            while time.monotonic() < deadline:
                case = next(cases, None)
                if case is None:
                    break
                progress(case.label)
                rows = (*report.rows, *bench.measure(case))
                report = replace(report, rows=rows, machine={**machine, "yardsticks": bench.yardsticks.chosen})
                del case  # its memory goes before the next one's is taken
                yield report
            else:
                report = replace(report, left_out=(*report.left_out, f"{op} {dtype} {size}"))
        yield report


class Bench:
    """Measures one case after another on one device."""

    def __init__(self, settings: OpSettings, faces: dict[str, ModuleType], clock: Clock, device: torch.device) -> None:
        self._settings, self._faces, self._clock = settings, faces, clock
        self.yardsticks = Yardsticks(device, clock)

    def measure(self, case: Case) -> list[Row]:
        """Let faces, peers and yardsticks take turns, then check the faces' values."""
        faces = {name: face for name, face in self._faces.items() if brings(face, case.op)}
        measures = self.yardsticks.of(case.bytes)
        runs: dict[str, Run] = {
            **{f"face {name}": partial(case.call, face) for name, face in faces.items()},
            **{f"peer {peer.name}": peer.run for peer in case.peers if peer.run is not None},
            **{kind: measure.run for kind, measure in measures.items()},
        }
        timed = interleave(
            list(runs.values()), self._clock, rounds=self._settings.repeats, budget_s=self._settings.budget_s
        )
        times = dict(zip(runs, timed, strict=True))
        speeds = {kind: _gbps(measure.bytes, median(times[kind])) for kind, measure in measures.items()}
        rows = []
        for name, face in faces.items():
            wrong = case.wrong(face)
            for peer in case.peers or (None,):
                theirs = None if peer is None else times.get(f"peer {peer.name}")
                rows.append(_row(case, name, times[f"face {name}"], peer, theirs, speeds, wrong))
        return rows


def _row(
    case: Case,
    face: str,
    times: list[float],
    peer: Peer | None,
    peer_times: list[float] | None,
    speeds: Mapping[Yardstick, float],
    wrong: int,
) -> Row:
    seconds, gbps = median(times), _gbps(case.bytes, median(times))
    theirs = median(peer_times) if peer_times else None
    figures: dict[str, Any] = {f"{kind}_gbps": speed for kind, speed in speeds.items()}
    figures |= {f"fraction_of_{kind}": gbps / speed for kind, speed in speeds.items()}
    return Row(
        op=case.op,
        variant=case.variant,
        face=face,
        dtype=case.dtype,
        elements=case.elements,
        bytes=case.bytes,
        ms=1e3 * seconds,
        gbps=gbps,
        bound=case.bound,
        peer=peer.name if peer else None,
        peer_missing=peer.missing if peer else None,
        peer_ms=1e3 * theirs if theirs else None,
        peer_gbps=_gbps(peer.bytes, theirs) if peer and theirs else None,
        speedup_vs_peer=theirs / seconds if theirs else None,
        rounds=len(times),
        wrong=wrong,
        **figures,
    )


def _gbps(nbytes: int, seconds: float) -> float:
    return nbytes / seconds / 1e9
