"""One judgement of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["ok", "note", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From harmless to harmful."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was looked at, what was met, and, where that is not simply well, why it matters and what to do."""

    level: Level
    """``ok``; ``note`` is good to know; ``warning`` costs speed; ``error`` ends overlap, or the run."""
    subject: str
    """What was looked at."""
    value: str
    """What was met."""
    why: str = ""
    """Why it matters."""
    cure: str = ""
    """One thing to do about it, as an imperative clause."""


def ok(subject: str, value: object) -> Finding:
    """It is well."""
    return Finding(level="ok", subject=subject, value=str(value))


def note(subject: str, value: object, why: str, cure: str = "") -> Finding:
    """It is good to know."""
    return Finding(level="note", subject=subject, value=str(value), why=why, cure=cure)


def warning(subject: str, value: object, why: str, cure: str) -> Finding:
    """It costs speed, or may."""
    return Finding(level="warning", subject=subject, value=str(value), why=why, cure=cure)


def error(subject: str, value: object, why: str, cure: str) -> Finding:
    """It ends overlap, or the run."""
    return Finding(level="error", subject=subject, value=str(value), why=why, cure=cure)
