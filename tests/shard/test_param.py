"""The public face keeps what the original carried; the original knows that it was replaced."""

from __future__ import annotations

import torch
from torch import nn

from overlap.shard.faces import Faces
from overlap.shard.layout import lay_out
from overlap.shard.param import REPLACED_MARK, Owner, ShardedParam, make_public, mark_replaced, replaced_by


def test_a_public_parameter_keeps_attributes():
    original = nn.Parameter(torch.ones(4), requires_grad=False)
    original.expert = True
    public = make_public(torch.zeros(2), original)
    assert public.expert is True
    assert not public.requires_grad


def test_only_what_was_replaced_is_marked():
    replaced, kept, public = (nn.Parameter(torch.ones(4)) for _ in range(3))
    table: dict[str, nn.Parameter | None] = {"replaced": public, "kept": kept}
    mark_replaced({param: (name, (Owner(table, name),)) for param, name in ((replaced, "replaced"), (kept, "kept"))})
    assert replaced_by(replaced) is public
    assert not hasattr(kept, REPLACED_MARK)
    assert not hasattr(public, REPLACED_MARK)


def test_tied_parameters_change_faces_together():
    layout = lay_out([(4,)], 2).params[0]
    tables: list[dict[str, nn.Parameter | None]] = [{}, {}]
    owners = tuple(Owner(table, name) for table, name in zip(tables, ("weight", "tied"), strict=True))
    param = ShardedParam("weight", owners, layout, True, nn.Parameter(torch.zeros(2)))
    param.working = nn.Parameter(torch.zeros(4))
    Faces([param]).show_working()
    assert tables == [{"weight": param.working}, {"tied": param.working}]
    param.show_public()
    assert [*tables[0].values(), *tables[1].values()] == [param.public, param.public]
