"""The file behind ``--json``."""

from __future__ import annotations

import json
from pathlib import Path

from overlap.errors import ConfigError, message


def write_json(path: Path | None, data: object) -> None:
    """Write data as JSON; nothing where no file was asked for.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is not None:
        write(path, json.dumps(data, indent=2) + "\n")


def write(path: Path, text: str) -> None:
    """Write text, with an error that names the option.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        got = f"{path} ({error.strerror})"
        raise ConfigError(message("json", "be a file to write to", got, "choose another file")) from None
