"""What is registered where, and what was edited while it was."""

import pytest
import torch
from torch import nn

from overlap.errors import StateError
from overlap.shard.faces import Faces, Table
from overlap.shard.layout import lay_out
from overlap.shard.param import Owner, ShardedParam


def _params(count: int, tables: list[Table]) -> list[ShardedParam]:
    """Parameters that take turns on the tables."""
    layout = lay_out([(4,)], 2).params[0]
    made = []
    for number in range(count):
        owner = Owner(tables[number % len(tables)], f"weight{number}")
        param = ShardedParam(f"fqn{number}", (owner,), layout, True, nn.Parameter(torch.zeros(2)))
        param.working = nn.Parameter(torch.zeros(4))
        made.append(param)
    return made


def test_each_module_gets_its_own_and_keeps_others():
    other = nn.Parameter(torch.zeros(1))
    tables: list[Table] = [{"other": other}, {}]
    params = _params(5, tables)
    faces = Faces(params)
    for show, face in ((faces.show_working, "working"), (faces.show_public, "public")):
        show()
        assert tables[0]["other"] is other
        for number, param in enumerate(params):
            assert tables[number % 2][f"weight{number}"] is getattr(param, face)
    assert [len(table) for table in tables] == [4, 2]


def test_one_that_is_shared_later_is_noticed():
    tables: list[Table] = [{}, {}]
    params = _params(2, tables)
    faces = Faces(params)
    assert faces.match()
    params[1].owners = (*params[1].owners, Owner(tables[0], "tied"))
    assert not faces.match()


@pytest.mark.parametrize("edited", [0, 2])
def test_an_edit_is_named_and_told_once(edited: int):
    params = _params(3, [{}])
    faces = Faces(params)
    faces.show_working()
    faces.check_unedited()
    with torch.no_grad():
        params[edited].working.add_(1)  # type: ignore[union-attr]
    faces.show_working()  # entering it again does not forget
    with pytest.raises(StateError, match=f"'fqn{edited}'"):
        faces.check_unedited()
    faces.check_unedited()


def test_edits_while_it_is_not_shown_are_nobodys_concern():
    params = _params(1, [{}])
    faces = Faces(params)
    faces.show_public()
    with torch.no_grad():
        params[0].working.add_(1)  # type: ignore[union-attr]
    faces.show_working()
    faces.check_unedited()
