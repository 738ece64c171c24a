"""A Chrome trace event by event: files of gigabytes pass through a window of a megabyte.

    { "schemaVersion": 1, "traceEvents": [ {...}, {...}, ... ], "traceName": "..." }
      ------ header -----                  --- events() ---     ---- header ----

Each event is decoded by the C scanner of ``json`` on its own. Numbers with a fraction stay text: a timestamp of 16
digits does not fit a float (``nanoseconds`` reads it exactly).
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import IO, Any

from overlap.errors import ConfigError, message

_WINDOW = 1 << 20
_SPACE = re.compile(r"[\s,]*")
_EVENTS = "traceEvents"


class TraceStream:
    """One trace file, plain or gzip; read it once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.header: dict[str, Any] = {}
        """Every field beside the events; complete when ``events`` has ended."""

    def events(self) -> Iterator[dict[str, Any]]:
        """The events in file order; a bare array without a header is a trace, too."""
        try:
            with _opened(self.path) as file:
                yield from self._parse(_Window(file, self.path.name))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise _not_a_trace(self.path.name, f"gzip data that breaks off or is malformed ({error})") from error

    def _parse(self, window: "_Window") -> Iterator[dict[str, Any]]:
        if window.take("["):
            yield from window.array()
        elif window.take("{"):
            yield from self._fields(window)
        else:
            raise _not_a_trace(self.path.name, "neither a JSON object nor an array")

    def _fields(self, window: "_Window") -> Iterator[dict[str, Any]]:
        found = False
        while not window.take("}"):
            name = window.value()
            if not window.take(":"):
                raise _not_a_trace(self.path.name, f"no value for {name!r}")
            if name == _EVENTS and window.take("["):
                found = True
                yield from window.array()
            else:
                self.header[name] = window.value()
        if not found:
            raise _not_a_trace(self.path.name, f"no {_EVENTS!r}")


class _Window:
    """The part of the text that is being decoded."""

    def __init__(self, file: IO[str], name: str) -> None:
        self._file = file
        self._name = name
        self._text = ""
        self._at = 0
        self._decode = JSONDecoder(parse_float=str, parse_constant=str, strict=False).raw_decode

    def take(self, mark: str) -> bool:
        """Step over ``mark`` if it comes next, blanks and commas aside."""
        self._skip()
        if not self._text.startswith(mark, self._at):
            return False
        self._at += 1
        return True

    def value(self) -> Any:
        """The next value, whole."""
        self._skip()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except JSONDecodeError as error:
                self._refill_or_refuse(error)
                continue
            # A number at the very end of the window may go on behind it.
            if end == len(self._text) and self._refill():
                continue
            self._at = end
            return value

    def array(self) -> Iterator[Any]:
        """The elements of an array whose bracket has been taken, up to and with its closing bracket."""
        skip = _SPACE.match
        while not self.take("]"):
            text, at, decode = self._text, self._at, self._decode
            try:
                while True:  # the hot loop: as many elements as the window holds
                    element, at = decode(text, at)
                    yield element
                    at = skip(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
            except JSONDecodeError as error:
                self._at = at
                if not text.startswith("]", at):
                    self._refill_or_refuse(error)

    def _skip(self) -> None:
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._refill():
                return

    def _refill(self) -> bool:
        """Read on, at least as much again as is left: one huge value costs linear time."""
        left = self._text[self._at :]
        more = self._file.read(max(_WINDOW, len(left)))
        self._text, self._at = left + more, 0
        return bool(more)

    def _refill_or_refuse(self, error: JSONDecodeError) -> None:
        if not self._refill():
            raise _not_a_trace(self._name, f"text that breaks off or is malformed ({error.msg})") from error


def nanoseconds(microseconds: int | str) -> int:
    """A timestamp or duration of a trace, µs, in whole ns: exact, rounded half even beyond three decimals."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    whole, _, fraction = microseconds.partition(".")
    if len(fraction) == 3 and whole.isdigit() and fraction.isdigit():
        return int(whole + fraction)
    try:
        return round(Decimal(microseconds) * 1000)
    except (InvalidOperation, ValueError, OverflowError) as error:
        cure = "record the trace anew"
        raise ConfigError(message("timestamp", "be a number of µs", microseconds, cure)) from error


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _not_a_trace(name: str, got: str) -> ConfigError:
    cure = "pass a trace of torch.profiler, complete as it was exported"
    return ConfigError(message(name, "be a Chrome trace", got, cure))
