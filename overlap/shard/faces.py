"""Both faces of all parameters of a unit, by the modules that show them: one dictionary update for each module."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from torch import nn

from overlap import _compat
from overlap.errors import StateError, message
from overlap.shard.param import ShardedParam

Table = dict[str, nn.Parameter | None]


class Faces:
    """What to register where. Made once memory is there; good as long as ``match`` says so."""

    def __init__(self, params: Sequence[ShardedParam]) -> None:
        self._params = params
        self._placed = [param for param in params if param.working is not None]
        self._full = [param.working for param in self._placed if param.working is not None]
        self._owners = [param.owners for param in params]
        self._working = _by_table(params, [param.working for param in params])
        self._public = _by_table(params, [param.public for param in params])
        self._versions = self._read_versions()

    def match(self) -> bool:
        """Whether nobody has come to share a parameter since."""
        return [param.owners for param in self._params] == self._owners

    def undisturbed(self) -> bool:
        """Whether modules hold the public faces, and both faces agree on what is trained."""
        for table, faces in self._public:
            if not all(map(is_, map(table.get, faces), faces.values())):
                return False
        with _compat.fast_attributes():
            trained = [param.public.requires_grad for param in self._placed]
        return trained == [face.requires_grad for face in self._full]

    def show_working(self, *, watch: bool = True) -> None:
        """Let module code see full parameters; ``watch`` for edits from now on."""
        if watch and not self._working_is_shown():  # else edits since it was shown would be forgotten
            self._versions = self._read_versions()
        for table, faces in self._working:
            table.update(faces)

    def show_public(self) -> None:
        """Let everyone else see sharded ones."""
        for table, faces in self._public:
            table.update(faces)

    def check_unedited(self) -> None:
        """As ``Unit.check_unedited``. Gathers write through an alias whose version this does not count."""
        found = self._read_versions()
        before, self._versions = self._versions, found
        if found != before:
            param = next(param for param, old, new in zip(self._placed, before, found, strict=True) if old != new)
            subject = f"full parameter {param.fqn!r}"
            cure = "edit the sharded one between passes, or use summon_full_params"
            raise StateError(message(subject, "stay unedited", "an in-place change, which would be lost", cure))

    def _working_is_shown(self) -> bool:
        table, faces = self._working[0]
        name, working = next(iter(faces.items()))
        return table.get(name) is working

    def _read_versions(self) -> list[int]:
        return _compat.versions_of(self._full)


def _by_table(params: Sequence[ShardedParam], faces: Sequence[nn.Parameter | None]) -> list[tuple[Table, Table]]:
    tables: dict[int, tuple[Table, Table]] = {}
    for param, face in zip(params, faces, strict=True):
        for owner in param.owners:
            tables.setdefault(id(owner.table), (owner.table, {}))[1][owner.attribute] = face
    return list(tables.values())
