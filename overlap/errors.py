"""The error tree. Every message has one grammar: subject must rule, but got value; cure."""


class OverlapError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(OverlapError, ValueError):
    """The caller asked for something that cannot be: wrong option, wrong type, wrong shape."""


class StateError(OverlapError, RuntimeError):
    """The call is valid, but not now: already sharded, optimizer built too early, graph too old."""


class DesyncError(OverlapError, RuntimeError):
    """Ranks disagree, or one of them stopped answering: names rank, unit and op."""


def message(subject: str, rule: str, got: object, cure: str) -> str:
    """Compose one error text.

    Args:
        subject: what is wrong, e.g. ``"stage"``.
        rule: what it must be, e.g. ``"be 0, 1, 2 or 3"``.
        got: the value met; shown with ``repr`` unless it is already text.
        cure: what to do about it, as an imperative clause.
    """
    shown = got if isinstance(got, str) else repr(got)
    return f"{subject} must {rule}, but got {shown}; {cure}"
