"""What benches do with the words of a command line. Everything refused here raises `ConfigError`."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeVar

from overlap.errors import ConfigError, message

Number = TypeVar("Number", int, float)


def words(text: str) -> tuple[str, ...]:
    """Split at commas."""
    return tuple(word.strip() for word in text.split(","))


def names(subject: str, given: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return known names in the order given, each once; refuse any other."""
    for name in given:
        choose(subject, name, known)
    return tuple(dict.fromkeys(given))


def choose(subject: str, name: str, known: tuple[str, ...]) -> None:
    """Refuse a name that is not known, and tell the nearest that is."""
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]}?" if near else "choose one of these"
        raise ConfigError(message(subject, f"be one of {', '.join(known)}", name, cure))


def positive(subject: str, value: Number) -> Number:
    """Return the value; refuse zero and less."""
    if not value > 0:
        raise ConfigError(message(subject, "be positive", value, "give a larger value"))
    return value
