"""Which kernels communicate: the regular expressions of ``kernels.toml``, and before them the user's."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from overlap.errors import ConfigError, message
from overlap.profiling.recording import CATEGORIES, Category

SHIPPED = "kernels.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the manifest."""

    pattern: str
    """Regular expression, searched in the name."""
    category: Category
    """What a kernel with such a name counts as."""
    library: str = ""
    """Who wrote it."""


_KEYS = tuple(field.name for field in fields(Rule))


class Classifier:
    """Rules in order; remembers its answers, for a trace has few names and many kernels."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        compiled = [(re.compile(rule.pattern), rule) for rule in self.rules]
        self.rule_of = cache(lambda name: next((rule for regex, rule in compiled if regex.search(name)), None))
        """The first rule that matches a name, or None."""


def classifier(extra: str | Path | None = None) -> Classifier:
    """The shipped manifest, with the rules of the TOML file ``extra`` before it."""
    shipped = parse_rules(files("overlap.profiling").joinpath(SHIPPED).read_text(encoding="utf-8"), SHIPPED)
    return Classifier([*(read_rules(Path(extra)) if extra is not None else ()), *shipped])


def read_rules(path: Path) -> list[Rule]:
    """The rules of one TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cure = "pass a TOML file of rules"
        raise ConfigError(message("comm_kernels", "be readable", f"{path} ({error})", cure)) from error
    return parse_rules(text, str(path))


def parse_rules(text: str, name: str) -> list[Rule]:
    """The rules of a manifest; ``name`` stands in errors."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(message(name, "be TOML", str(error), "write [[rule]] tables")) from error
    _only_known(document, ["rule"], name)
    rules = document.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ConfigError(message(f"rule of {name}", "be an array of tables", repr(rules), "write [[rule]]"))
    return [_rule(entry, f"rule {number} of {name}") for number, entry in enumerate(rules, 1)]


def _rule(entry: Mapping[str, Any], subject: str) -> Rule:
    _only_known(entry, _KEYS, subject)
    for key in ("pattern", "category"):
        if not isinstance(entry.get(key), str):
            raise ConfigError(message(f"{key} of {subject}", "be text", entry.get(key), f"add {key} = '...'"))
    if entry["category"] not in CATEGORIES:
        cure = "choose what its time counts as"
        raise ConfigError(
            message(f"category of {subject}", f"be one of {', '.join(CATEGORIES)}", entry["category"], cure)
        )
    try:
        re.compile(entry["pattern"])
    except re.error as error:
        cure = "escape what is meant literally"
        raise ConfigError(message(f"pattern of {subject}", "be a regular expression", str(error), cure)) from error
    return Rule(**entry)


def _only_known(entry: Mapping[str, Any], known: Sequence[str], subject: str) -> None:
    for key in entry:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            cure = f"did you mean {near[0]}?" if near else "remove it"
            raise ConfigError(message(f"key of {subject}", f"be one of {', '.join(known)}", key, cure))
