"""Full parameters outside of forward and backward, and changes of how long units keep theirs: between passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch.distributed.fsdp import UnshardHandle as TorchHandle

from overlap.engine.gradients import Gradients
from overlap.engine.passes import Passes
from overlap.engine.residency import Residency
from overlap.errors import StateError, message
from overlap.schedule.executor import Executor
from overlap.shard.unit import Unit


class UnshardHandle(TorchHandle):
    """What ``unshard(async_op=True)`` returns."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish

    def wait(self) -> None:
        """Let compute wait for the gather, and show full parameters. The unit's forward does it, too."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class ByHand:
    """What users ask of an engine between passes; in a pass the plan decides, and it is refused.

    Attributes:
        summoned: full plain parameters are registered by ``summon_full_params``, and passes are not the engine's.
    """

    def __init__(
        self, units: Sequence[Unit], residency: Residency, gradients: Gradients, executor: Executor, passes: Passes
    ) -> None:
        self._units, self._residency, self._gradients = units, residency, gradients
        self._executor, self._passes = executor, passes
        self.summoned = False

    def unshard(self, unit: Unit) -> UnshardHandle:
        """Gather a unit; it stays until ``reshard``. A collective."""
        self._check_between_passes("unshard")
        self._passes.refresh()
        if not unit.held:
            moves = unit.shares_slot
            unit.held = unit.own_slot = True
            self._lay_out(moves=moves)
        self._fetch(self._passes.number_of(unit))
        return UnshardHandle(partial(self._show, unit))

    def reshard(self, unit: Unit) -> None:
        """Let go of what ``unshard`` has brought."""
        self._check_between_passes("reshard")
        if unit.held:
            unit.held = False
            unit.show_public()
            self._lay_out(moves=False)
            self._residency.dropped(self._passes.number_of(unit))
            unit.check_unedited()

    @contextmanager
    def keeping_otherwise(self, method: str) -> Iterator[None]:
        """Inside, units are told to keep their parameters for longer or for shorter."""
        self._check_between_passes(method)
        before = [unit.shares_slot for unit in self._units]
        yield
        self._lay_out(moves=before != [unit.shares_slot for unit in self._units])

    def gather_ahead(self, distance: int) -> None:
        """Gather at least so many units ahead from now on."""
        self._check_between_passes("set_modules_to_forward_prefetch")
        if distance > self._residency.prefetch:
            self._residency.prefetch = distance
            self._lay_out(moves=True)

    def begin_summon(self) -> None:
        """Full plain parameters are about to be registered by others."""
        self._check_between_passes("summon_full_params")
        if self._residency.held:
            got = "units that unshard() holds"
            raise StateError(message("summon_full_params()", "find sharded parameters", got, "leave that first"))
        self.summoned = True

    def end_summon(self) -> None:
        """Back to the public faces."""
        self.summoned = False
        for unit in self._units:
            unit.show_public()

    def _show(self, unit: Unit) -> None:
        if unit.held:
            self._executor.arrive(self._passes.number_of(unit))
            unit.show_working()

    def _fetch(self, number: int) -> None:
        if self._units[number].slot is not None:
            self._executor.fetch(number)
        self._residency.fetched(number)

    def _lay_out(self, *, moves: bool) -> None:
        if not moves:
            self._executor.renew(self._residency.step_spec(self._gradients))
            return
        self._residency.place()
        self._executor.relocate(self._residency.step_spec(self._gradients))
        for number in sorted(self._residency.held):  # what is shown must not be an empty slot
            self._fetch(number)
            self._executor.arrive(number)

    def _check_between_passes(self, method: str) -> None:
        if self.summoned:
            got = "a call inside summon_full_params()"
            raise StateError(message(f"{method}()", "find sharded parameters", got, "leave that first"))
        self._passes.recover()
        if self._passes.running:
            cure = "call it between passes; inside, call the submodule or register_forward_method()"
            raise StateError(message(f"{method}()", "be called outside of forward and backward", "a call inside", cure))
