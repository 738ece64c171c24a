"""Ranges for Nsight in NVTX domain "overlap", one per op of the plan: "gather blocks.3", payload = bytes.

    scope = Scope("gather", "blocks.3", bytes=4096)      # once, when the plan is bound
    with scope: ...                                      # every step, on whichever thread runs the lane

Off is the state at import, the state without the ``nvtx`` package and the state without a tool attached to
the process: entering a scope is then one look at a module global. Ranges are push/pop, so each thread of a
lane nests its own.
"""

from functools import cache
from types import TracebackType
from typing import Any, Protocol, cast

from overlap.errors import ConfigError, message

DOMAIN = "overlap"

# Colours follow the lanes, so that the same kind of work looks the same in every trace (ARGB).
CATEGORY_COLORS = {
    "gather": 0xFF4C78A8,
    "reduce": 0xFFF58518,
    "replicate": 0xFFE45756,
    "compute": 0xFF54A24B,
    "update": 0xFFB279A2,
    "host": 0xFF9D755D,
    "disk": 0xFF79706E,
}


class _Domain(Protocol):
    """The part of ``nvtx.Domain`` that ranges need."""

    def get_event_attributes(self, message: str, color: int, category: str, payload: int) -> Any: ...

    def push_range(self, attributes: Any) -> None: ...

    def pop_range(self) -> None: ...

    def __hash__(self) -> int: ...


_domain: _Domain | None = None
_listener: _Domain | None = None
_demanded = False


def enable(on: bool = True) -> bool:
    """Turn ranges on or off, between steps: a range open across the switch would stay unbalanced.

    Returns:
        Whether ranges are recorded from now on. Asking for them without the ``nvtx`` package, or without a
        tool attached (``nsys profile ...``), is no error: there is nobody to see them.
    """
    global _domain
    _domain = (_listener or _attached_domain()) if on else None
    return _domain is not None


def demand(listener: _Domain | None = None) -> None:
    """From now on engines record ranges, whatever their option ``nvtx`` says: somebody profiles the program.

    Args:
        listener: receives the ranges instead of NVTX, e.g. a profiler that does not read it.
    """
    global _demanded, _listener
    _demanded, _listener = True, listener


def demanded() -> bool:
    """Whether somebody profiles the program."""
    return _demanded


def enabled() -> bool:
    """Whether ranges are being recorded."""
    return _domain is not None


class Scope:
    """One range, built once and entered every step; re-entrant and shared freely between threads."""

    __slots__ = ("_attributes", "_registered_in", "bytes", "category", "name")

    def __init__(self, category: str, unit: str, *, phase: str | None = None, bytes: int = 0) -> None:
        """Name the range ``"<phase> <unit>"``.

        Args:
            category: gather, reduce, compute, update, host or disk.
            unit: FQN of the unit, "" for the whole model.
            phase: what runs, e.g. "forward" in category compute; the category itself when left out.
            bytes: payload of the range, as in ``Span.bytes``.
        """
        if category not in CATEGORY_COLORS:
            rule = f"be one of {', '.join(CATEGORY_COLORS)}"
            raise ConfigError(message("category", rule, category, "name the kind of work, not the phase"))
        self.category = category
        self.name = f"{phase or category} {unit}".rstrip()
        self.bytes = bytes
        self._registered_in: _Domain | None = None
        self._attributes: Any = None

    def __enter__(self) -> None:
        """Push the range on the calling thread."""
        domain = _domain
        if domain is not None:
            if self._registered_in is not domain:
                self._register(domain)
            domain.push_range(self._attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Pop the range, also when the op failed."""
        domain = _domain
        if domain is not None:
            domain.pop_range()

    def _register(self, domain: _Domain) -> None:
        self._attributes = _attributes(domain, self.name, self.category, self.bytes)
        self._registered_in = domain  # last: another thread may take it as the sign that attributes are there


@cache
def _attributes(domain: _Domain, name: str, category: str, bytes: int) -> Any:
    """Event attributes with registered name and category; scopes that say the same share them."""
    return domain.get_event_attributes(name, CATEGORY_COLORS[category], category, bytes)


def _attached_domain() -> _Domain | None:
    """The domain a tool listens to, or None."""
    try:
        import nvtx
    except ImportError:
        return None
    from overlap.config import nvtx_tool_attached  # late: a profiler prepares us while torch is being imported

    domain: _Domain | None = nvtx.get_domain(DOMAIN)
    if not isinstance(domain, nvtx.Domain):  # a stand-in that does nothing; our own "off" is cheaper
        domain = _denied_domain() if nvtx_tool_attached() else None
    return domain


def _denied_domain() -> _Domain:
    from overlap._compat import nvtx_domain

    return cast("_Domain", nvtx_domain(DOMAIN))
