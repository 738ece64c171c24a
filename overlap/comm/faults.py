"""Calls that go wrong on purpose: for tests of what ranks that are out of step get to see."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from overlap.errors import DesyncError, message

T = TypeVar("T")

Action = Literal["raise", "skip", "double", "reorder"]


@dataclass(frozen=True)
class Fault:
    """What goes wrong in the `call`-th call (from 0) of `kind`.

    Attributes:
        kind: as given to the collective; for control channels see `ShapedControl`.
        call: which call of that kind fails.
        action: "raise" a `DesyncError` here; "skip" the call, which leaves the peers waiting; issue it twice
            ("double"); or return and issue it behind the next call, whatever its kind ("reorder").
    """

    kind: str
    call: int = 0
    action: Action = "raise"


class Faults:
    """Carries out the calls of one communicator, most of them as they are.

    Args:
        faults: where it does not.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = {(fault.kind, fault.call): fault for fault in faults}
        self._calls: Counter[str] = Counter()
        self._held: Callable[[], object] | None = None

    def carry_out(self, call: Callable[[], T], kind: str, where: str, alone: T) -> T:
        """Make a call, or what its fault makes of it.

        Args:
            call: the collective.
            kind: of the call.
            where: for the text of an injected error.
            alone: what a rank has without having asked the others.
        """
        fault = self._faults.get((kind, self._calls[kind]))
        self._calls[kind] += 1
        held, self._held = self._held, None
        if fault is not None and fault.action == "raise":
            raise DesyncError(message(where, "complete", f"an injected {fault}", "expect it in this test"))
        result = alone
        if fault is not None and fault.action == "reorder":
            self._held = partial(copy_context().run, call)  # with the label that it has now
        elif fault is None or fault.action == "double":
            result = call()
            if fault is not None:
                result = call()
        if held is not None:
            held()
        return result
