"""Time, Python calls and launches of each subject."""

import sys
import time
from collections.abc import Callable, Mapping
from statistics import quantiles
from types import FrameType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from overlap.bench.host.subjects import Subject
from overlap.ops.faces import face_of

WARM_UP = 3

FUSED = ("adamw", "grad_norm", "pack", "reduce_sum", "unpack")
"""Ops of ours, which are no aten operators."""


def measure(subjects: Mapping[str, Subject], rounds: int) -> dict[str, dict[str, float]]:
    """Return figures by subject: seconds are the fastest tenth over rounds in turns, counts are of one step."""
    for subject in subjects.values():
        for _ in range(WARM_UP):
            _timed(subject)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            times[name].append(_timed(subject))
    return {name: {**_seconds(times[name]), **_counts(subject)} for name, subject in subjects.items()}


def _timed(subject: Subject) -> tuple[float, float]:
    start = time.perf_counter()
    subject.forward_backward()
    middle = time.perf_counter()
    subject.update()
    end = time.perf_counter()
    subject.forget()
    return middle - start, end - middle


def _seconds(times: list[tuple[float, float]]) -> dict[str, float]:
    passes, updates = zip(*times, strict=True)
    return {"pass_s": _fast(passes), "update_s": _fast(updates)}


def _fast(seconds: tuple[float, ...]) -> float:
    """The first decile: what the machine does beside only adds."""
    return quantiles(seconds, n=10, method="inclusive")[0]


def _counts(subject: Subject) -> dict[str, float]:
    pass_calls, _ = _calls(subject.forward_backward)
    update_calls, fused = _calls(subject.update)
    subject.forget()
    subject.forward_backward()
    aten = _operators(subject.update)
    subject.forget()
    return {"pass_calls": pass_calls, "update_calls": update_calls, "update_launches": aten + fused}


def _calls(work: Callable[[], None]) -> tuple[int, int]:
    """Python functions that this thread enters, and those among them that launch a fused op of ours."""
    entered = launched = 0
    face = face_of(torch.empty(0))
    fused = {getattr(face, name).__code__ for name in FUSED}

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal entered, launched
        if event == "call":
            entered += 1
            launched += frame.f_code in fused

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return entered, launched


def _operators(work: Callable[[], None]) -> int:
    """Aten operators, those that others call too."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        work()
    return sum(event.name.startswith("aten::") for event in profiler.events())
