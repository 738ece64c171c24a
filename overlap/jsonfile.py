"""Files that a command line names for its figures, above all the one behind ``--json``."""

from __future__ import annotations

import json
from pathlib import Path

from overlap.errors import ConfigError, message


def check_writable(subject: str, path: Path | None) -> None:
    """Refuse a file that cannot be written before anything is measured; empties it.

    A run that fails then leaves no report of an earlier one. Raises ``ConfigError``.
    """
    if path is not None:
        write_text(subject, path, "")


def write_json(path: Path | None, data: object, subject: str = "json") -> None:
    """Write data as JSON; nothing where no file was asked for.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is not None:
        write_text(subject, path, json.dumps(data, indent=2) + "\n")


def write_text(subject: str, path: Path, text: str) -> None:
    """Write a file.

    Args:
        subject: the option that names it, for the error.
        path: of the file.
        text: all of it.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        got = f"{path} ({error.strerror})"
        raise ConfigError(message(subject, "be a file to write to", got, "choose another file")) from None
